from bolide.core.phases import Phases


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def test_phases_add_up_to_the_time_that_went_by():
    clock = Clock()
    phases = Phases(clock)
    clock.now_s += 1
    with phases.within("restoring"):
        clock.now_s += 2
    assert phases.switch("training") == "startup"
    clock.now_s += 4
    with phases.within("validation"):
        clock.now_s += 8
        with phases.within("saving"):
            clock.now_s += 16
        clock.now_s += 32
    clock.now_s += 64
    assert phases.seconds() == {
        "startup": 1, "restoring": 2, "training": 68, "validation": 40, "saving": 16,
    }  # fmt: skip
    assert sum(phases.seconds().values()) == clock.now_s - phases.began_s


def test_an_exception_ends_its_phase():
    phases = Phases(Clock())
    try:
        with phases.within("saving"):
            raise OSError
    except OSError:
        assert phases.phase == "startup"
