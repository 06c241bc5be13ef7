"""GoodputMonitor on whole fits, with a clock that the parts of the run move."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from bolide.callbacks import Callback, ModelCheckpoint
from bolide.checkpoint import io
from bolide.core import phases as phases_module
from bolide.core.errors import ConfigError
from bolide.monitor import GoodputMonitor, goodput, ledger
from tests.callbacks.support import Scored, rows, trainer


class Clock:
    now_s = 1_000_000.0

    def perf_counter(self):
        return self.now_s

    def time(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(phases_module.Phases.__init__, "__defaults__", (made.perf_counter,))
    monkeypatch.setattr(goodput, "time", made)
    monkeypatch.setattr(goodput, "process_age_s", lambda: 0.0)
    return made


class Rows:
    """Five batches, each of which takes two seconds to come."""

    def __init__(self, clock):
        self.clock, self.loader = clock, rows(5)

    def __len__(self):
        return 5

    def __iter__(self):
        for batch in self.loader:
            self.clock.now_s += 2
            yield batch


class Timed(Scored):
    """Three seconds to set up; a step takes 10, a validation batch 100."""

    def __init__(self, clock, fails_at=None):
        super().__init__()
        self.clock, self.fails_at = clock, fails_at

    def setup(self, stage):
        self.clock.now_s += 3

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fails_at:
            raise KeyError("as asked")
        self.clock.now_s += 10
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.clock.now_s += 100


def run(clock, *callbacks, fails_at=None, val=1, ckpt_path=None, **arguments):
    made = trainer(*callbacks, **{"max_epochs": 2, **arguments})
    made.fit(Timed(clock, fails_at), Rows(clock), rows(val) if val else None, ckpt_path=ckpt_path)
    return made


def seconds(attempt):
    return {name: value for name, value in attempt.seconds.items() if value}


@pytest.fixture
def slow_disk(clock, monkeypatch):
    """Each file that is synced takes 1000 seconds."""

    def tick(event, number, kind, path):
        if (event, kind) == ("before", "fsync"):
            clock.now_s += 1000

    monkeypatch.setattr(io.operations, "listeners", [tick])


def test_the_categories_add_up(clock, slow_disk, tmp_path):
    saver = ModelCheckpoint(tmp_path / "saved", every_n_epochs=1)
    begun_s, ended_s = clock.now_s, []

    class Ends(Callback):
        def teardown(self, trainer, pl_module, stage):
            ended_s.append(clock.now_s)

    run(clock, GoodputMonitor(tmp_path), Ends(), saver, checkpointing={"async": False})
    (attempt,) = ledger.read(tmp_path / "goodput.jsonl")
    assert seconds(attempt) == {"startup": 3, "training": 100, "data_wait": 20, "validation": 200, "saving": 2000}
    assert sum(attempt.seconds.values()) == ended_s[0] - begun_s
    assert (attempt.status, attempt.first_batch, attempt.batches) == ("success", 0, 10)
    assert (attempt.began_s, attempt.ended_s) == (begun_s, ended_s[0])


def test_what_was_lost_is_recomputed(clock, tmp_path, caplog):
    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=3, save_top_k=-1)
    with pytest.raises(KeyError):
        run(clock, GoodputMonitor(tmp_path), saver, fails_at=8)
    clock.now_s += 500
    caplog.set_level("INFO", "bolide")
    run(clock, GoodputMonitor(tmp_path), saver, ckpt_path=str(tmp_path / "saved/epoch=1-step=6.ckpt"))
    first, second = ledger.read(tmp_path / "goodput.jsonl")
    assert first.status == "failed" and first.batches == 8 and second.first_batch == 6
    assert seconds(first) == {"startup": 3, "training": 80, "data_wait": 18, "validation": 100}
    # the batch before the place is read again, as this loader has no index space
    assert seconds(second) == {
        "startup": 3, "training": 20, "recomputed": 20, "restoring": 2, "data_wait": 8, "validation": 100,
    }  # fmt: skip
    sums = ledger.totals([first, second])
    assert sums["idle"] == 500 and sum(sums.values()) == clock.now_s - 1_000_000
    assert "2 batches were trained on again" in caplog.text


def test_lines_are_written_as_time_goes_by(clock, tmp_path):
    path = tmp_path / "goodput.jsonl"
    lines = []

    class Looks(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            lines.append(path.read_bytes().count(b"\n"))

    run(clock, GoodputMonitor(tmp_path, interval_s=24.0), Looks(), max_epochs=1, val=0)
    assert lines == [1, 1, 2, 2, 3]  # one as it began, then every 24 s, where a batch takes 12
    assert ledger.read(path)[0].status == "success"


def test_an_attempt_that_died_is_known_by_its_last_line(clock, tmp_path):
    path = tmp_path / "goodput.jsonl"
    before = []

    class Copies(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            before.append(path.read_bytes())

    run(clock, GoodputMonitor(tmp_path, interval_s=10.0), Copies(), max_epochs=1, val=0)
    path.write_bytes(before[4])
    (died,) = ledger.read(path)
    assert died.status == "running" and died.batches == 4
    assert seconds(died) == {"startup": 3, "training": 40, "data_wait": 10}


@pytest.mark.parametrize("verbose", [True, False])
def test_the_table_is_shown_at_the_end(clock, tmp_path, caplog, verbose):
    with caplog.at_level("INFO", "bolide"):
        run(clock, GoodputMonitor(tmp_path, verbose=verbose), max_epochs=1)
    assert ("Where the time went" in caplog.text) is verbose


def test_a_ledger_that_cannot_be_written_ends_no_run(clock, tmp_path):
    (tmp_path / "goodput.jsonl").mkdir()
    with pytest.warns(UserWarning, match="cannot be written"):
        assert run(clock, GoodputMonitor(tmp_path), max_epochs=1).global_step == 5


def test_a_dry_run_and_an_evaluation_write_nothing(clock, tmp_path):
    monitor = GoodputMonitor(tmp_path)
    run(clock, monitor, fast_dev_run=True)
    trainer(monitor).validate(Timed(clock), rows(1), verbose=False)
    assert list(tmp_path.iterdir()) == []


def test_where_the_ledger_goes(clock, tmp_path, monkeypatch):
    run(clock, GoodputMonitor(), max_epochs=1, default_root_dir=tmp_path / "root")
    assert (tmp_path / "root/goodput.jsonl").is_file()
    monkeypatch.setenv("BOLIDE_RUN_DIR", str(tmp_path / "run"))
    run(clock, GoodputMonitor(), max_epochs=1, default_root_dir=tmp_path / "root2")
    assert (tmp_path / "run/goodput.jsonl").is_file() and not (tmp_path / "root2/goodput.jsonl").exists()
    with pytest.warns(UserWarning, match="local folders only"):
        run(clock, GoodputMonitor("memory://x"), max_epochs=1)


def test_the_process_counts_from_its_start(tmp_path):
    made = trainer(GoodputMonitor(tmp_path), max_epochs=1)
    made.fit(Scored(), DataLoader(rows(2).dataset))
    assert ledger.read(tmp_path / "goodput.jsonl")[0].seconds["training"] > 0
    assert goodput.process_age_s() >= 0.0


def test_an_interval_that_is_none():
    with pytest.raises(ConfigError, match="interval_s=0"):
        GoodputMonitor(interval_s=0)


def test_a_ledger_that_has_no_place_ends_no_run(tmp_path):
    (tmp_path / "taken").touch()
    made = trainer(GoodputMonitor(tmp_path / "taken" / "below"))
    with pytest.warns(UserWarning, match="cannot be written"):
        made.fit(Scored(), rows(3))
    assert made.global_step == 9
