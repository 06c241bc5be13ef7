import io
import sys

import pytest
import torch

import bolide as pl
from bolide.callbacks import Callback, PlainProgressBar, ProgressBar, RichProgressBar, TQDMProgressBar
from bolide.callbacks.progress import RichProgressBarTheme, default_progress_bar
from bolide.callbacks.progress import pace as pace_module
from bolide.callbacks.progress.pace import Pace
from bolide.callbacks.progress.tqdm_progress import Tqdm, convert_inf
from bolide.core.errors import MisconfigurationException
from bolide.loggers import CSVLogger
from bolide.loggers.logger import DummyLogger
from tests.callbacks.support import Scored, fit, rows, trainer


class Clock:
    now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(pace_module, "time", made)
    return made


class Module(Scored):
    def __init__(self):
        super().__init__(values=(1.5, 2.5, 3.5), log_train=True)

    def test_step(self, batch, batch_idx):
        self.log("t", 4.5)

    def predict_step(self, batch, batch_idx):
        return batch

    def on_train_epoch_end(self):
        self.log("end", 9.0 + self.current_epoch, prog_bar=True)


def run(bar, capsys=None, **arguments):
    made = trainer(bar, **{"enable_progress_bar": True, "max_epochs": 2, **arguments})
    module = Module()
    made.fit(module, rows(4), rows(2))
    made.validate(module, rows(2), verbose=False)
    made.test(module, rows(3), verbose=False)
    made.predict(module, rows(3))
    return made


# ---------------------------------------------------------------------- pace


def drawn_at(pace, clock, batches, seconds_a_batch, total=None, draw_s=0.0):
    pace.start(batches if total is None else total)
    found = []
    for n in range(1, batches + 1):
        clock.now_s += seconds_a_batch
        if pace.due(n):
            began_s = clock.now_s
            clock.now_s += draw_s
            pace.drawn(began_s)
            found.append(n)
    return found


def test_a_bar_is_drawn_ten_times_a_second_and_at_its_end(clock):
    found = drawn_at(Pace(1), clock, 1000, 0.001)
    assert len(found) == 11 and found[0] == 1 and found[-1] == 1000


def test_slow_batches_are_all_drawn(clock):
    assert drawn_at(Pace(1), clock, 5, 0.2) == [1, 2, 3, 4, 5]


def test_the_refresh_rate_is_kept_at_the_least(clock):
    assert drawn_at(Pace(3), clock, 10, 0.2) == [3, 6, 9, 10]


def test_zero_draws_nothing(clock):
    assert drawn_at(Pace(0), clock, 10, 0.2) == []


def test_drawing_takes_a_hundredth_of_the_time(clock):
    found = drawn_at(Pace(1), clock, 10_000, 0.001, total=float("inf"), draw_s=0.005)
    gaps = [b - a for a, b in zip(found, found[1:], strict=False)]
    assert gaps and min(gaps) >= 490


def test_a_bar_that_is_very_slow_to_draw_is_drawn_every_second(clock):
    found = drawn_at(Pace(1), clock, 3000, 0.01, total=float("inf"), draw_s=0.5)
    assert max(b - a for a, b in zip(found, found[1:], strict=False)) <= 101


def test_an_epoch_of_unknown_length_has_no_end(clock):
    assert drawn_at(Pace(1), clock, 3, 0.001, total=float("inf")) == [1]


# ---------------------------------------------------------------------- what a bar reads


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar, PlainProgressBar])
def test_metrics_are_read_only_to_be_drawn(bar, monkeypatch):
    class Counted(bar):
        reads = 0

        def get_metrics(self, trainer, pl_module):
            Counted.reads += 1
            return super().get_metrics(trainer, pl_module)

    made = trainer(Counted(), enable_progress_bar=True, max_epochs=1)
    made.fit(Scored(log_train=True), rows(400))
    assert 1 <= Counted.reads < 100


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar, PlainProgressBar])
def test_a_bar_does_not_change_the_run(bar, capsys):
    def weights(*bars):
        torch.manual_seed(7)
        module = Module()
        made = trainer(*bars, enable_progress_bar=bool(bars), max_epochs=2)
        made.fit(module, rows(70), rows(2))
        return module.w.detach(), {name: float(v) for name, v in made.callback_metrics.items()}

    assert weights() == weights(bar())


@pytest.mark.parametrize(
    ("loggers", "shown"),
    [
        ([], {}),
        ([3], {"v_num": 3}),
        (["a"], {"v_num": "a"}),
        (["abcdefgh"], {"v_num": "efgh"}),
        ([3, 4], {"v_num": "3_4"}),
        ([3, 3], {"v_num": "3"}),
    ],
)
def test_the_version_is_shown(loggers, shown, tmp_path):
    made = trainer(logger=[CSVLogger(tmp_path, version=version) for version in loggers] or False)
    assert TQDMProgressBar().get_metrics(made, None) == shown


def test_a_metric_named_as_the_version_is_said(tmp_path):
    class Named(Scored):
        def training_step(self, batch, batch_idx):
            self.log("v_num", 1.0, prog_bar=True)
            return super().training_step(batch, batch_idx)

    with pytest.warns(UserWarning, match="'v_num' by itself"):
        fit(PlainProgressBar(), module=Named(), enable_progress_bar=True, logger=CSVLogger(tmp_path), max_epochs=1)


def test_counts_and_names():
    seen = {}

    class Look(PlainProgressBar):
        def on_train_epoch_start(self, trainer, pl_module):
            seen[trainer.current_epoch] = (self.total_train_batches, self.total_val_batches)
            super().on_train_epoch_start(trainer, pl_module)

        def on_validation_batch_end(self, *args):
            seen["val"] = self.total_val_batches_current_dataloader
            super().on_validation_batch_end(*args)

    run = {"max_epochs": 2, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 1}
    fit(Look(), train=4, val=2, enable_progress_bar=True, **run)
    assert seen == {0: (4, 0), 1: (4, 2), "val": 2}
    bar = ProgressBar()
    assert (bar.train_description, bar.validation_description) == ("Training", "Validation")
    with pytest.raises(TypeError, match="not known"):
        _ = bar.trainer
    with pytest.raises(NotImplementedError, match="disable"):
        bar.disable()


def test_which_loader_runs():
    bar = ProgressBar()
    assert [bar.has_dataloader_changed(i) for i in (0, 0, 1)] == [True, False, True]
    bar.reset_dataloader_idx_tracker()
    assert bar.has_dataloader_changed(1)


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar, PlainProgressBar])
def test_a_wrong_refresh_rate_is_refused(bar):
    for wrong in (-1, 0.5):
        with pytest.raises(MisconfigurationException, match="refresh_rate"):
            bar(refresh_rate=wrong)


@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar, PlainProgressBar])
def test_on_and_off(bar, capsys):
    made = bar()
    assert made.is_enabled and not made.is_disabled and made.refresh_rate == 1
    made.disable()
    assert made.is_disabled
    run(made)
    made.enable()
    assert made.is_enabled and bar(refresh_rate=0).is_disabled
    run(bar(refresh_rate=0))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).strip() == ""


def test_other_ranks_are_silent():
    class Second:
        is_global_zero = False

    bar = TQDMProgressBar()
    bar.setup(Second(), None, "fit")
    assert bar.is_disabled


# ---------------------------------------------------------------------- tqdm


def test_tqdm_shows_all_loops_with_their_final_state(capsys):
    run(TQDMProgressBar())
    out = capsys.readouterr().out
    for part in ("Epoch 0: 100%", "Epoch 1: 100%", "4/4", "Validation DataLoader 0: 100%", "Testing DataLoader 0: 100%",
                 "Predicting DataLoader 0: 100%", "3/3", "end=10.00", "v=2.500"):  # fmt: skip
        assert part in out, part


def test_tqdm_leaves_a_bar_for_each_epoch(capsys):
    class Counted(TQDMProgressBar):
        made = 0

        def init_train_tqdm(self):
            self.made += 1
            return super().init_train_tqdm()

    stays, goes = Counted(leave=True), Counted()
    run(stays)
    run(goes)
    assert (stays.made, goes.made) == (2, 1)


class Bars(Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        bar = trainer.progress_bar_callback.train_progress_bar
        self.seen["train"] = (type(bar), bar.total)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        kind = "sanity" if trainer.sanity_checking else "val"
        self.seen[kind] = trainer.progress_bar_callback.val_progress_bar.total


def test_tqdm_bars_are_there_while_they_run(capsys):
    bar, watch = TQDMProgressBar(), Bars()
    made = fit(bar, watch, enable_progress_bar=True, max_epochs=1, num_sanity_val_steps=1, val=3)
    assert watch.seen == {"train": (Tqdm, 5), "val": 3, "sanity": 1}
    assert made.progress_bar_callback is bar
    with pytest.raises(TypeError, match="no bar for 'train'"):
        _ = bar.train_progress_bar


def test_an_own_tqdm_bar(capsys):
    class Own(TQDMProgressBar):
        def init_train_tqdm(self):
            bar = super().init_train_tqdm()
            bar.bar_format = "OWN {n_fmt}"
            return bar

    fit(Own(), enable_progress_bar=True, max_epochs=1)
    assert "OWN 5" in capsys.readouterr().out


def test_tqdm_stands_at_the_batch_where_training_stopped(capsys):
    fit(TQDMProgressBar(refresh_rate=100), train=50, max_steps=7, max_epochs=1, enable_progress_bar=True, val=0)
    assert "7/50" in capsys.readouterr().out


def test_tqdm_without_a_length(capsys):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from torch.zeros(3, 1)

    made = trainer(TQDMProgressBar(), enable_progress_bar=True, max_epochs=1)
    made.fit(Scored(), torch.utils.data.DataLoader(Endless()))
    assert "3/?" in capsys.readouterr().out


def test_an_exception_leaves_no_bar_open(capsys):
    class Fails(Scored):
        def training_step(self, batch, batch_idx):
            raise ValueError("no")

    for bar in (TQDMProgressBar(), RichProgressBar(), PlainProgressBar()):
        with pytest.raises(ValueError, match="no"):
            fit(bar, module=Fails(), enable_progress_bar=True)
    assert not Tqdm._instances


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.000"),
        (1.5, "1.500"),
        (-2.0, "-2.00"),
        (123456.0, "1.23e+5"),
        (0.00012, "0.00012"),
        (7, "7"),
        ("x", "x"),
    ],
)
def test_numbers_keep_their_width(number, text):
    assert Tqdm.format_num(number) == text.replace("e+5", "e+05")


def test_infinity_is_no_total():
    assert [convert_inf(x) for x in (5, float("inf"), None)] == [5, None, None]


def test_printing_goes_above_the_bar(capsys):
    class Prints(Scored):
        def on_train_epoch_end(self):
            self.trainer.print("hello", self.current_epoch)

    for bar in (TQDMProgressBar(), RichProgressBar(), PlainProgressBar()):
        fit(bar, module=Prints(), enable_progress_bar=True, max_epochs=1)
        assert "hello 0" in capsys.readouterr().out


# ---------------------------------------------------------------------- rich


def rich_text(**arguments):
    stream = io.StringIO()
    console = {"file": stream, "force_terminal": False, "width": 200}
    run(RichProgressBar(console_kwargs=console, **arguments))
    return stream.getvalue()


def test_rich_shows_all_loops_with_their_final_state():
    text = rich_text()
    for part in (
        "Epoch 1/1",
        "4/4",
        "v: 2.500",
        "end: 10.000",
        "Testing DataLoader 0",
        "Predicting DataLoader 0",
        "it/s",
    ):
        assert part in text, part


def test_rich_leaves_a_bar_for_each_epoch():
    text = rich_text(leave=True)
    assert "Epoch 0/1" in text and "Epoch 1/1" in text and "end: 9.000" in text


def test_rich_theme_and_columns():
    from rich.progress import TextColumn

    class Own(RichProgressBar):
        def configure_columns(self, trainer):
            return [TextColumn("OWN {task.completed}")]

    stream = io.StringIO()
    theme = RichProgressBarTheme(metrics_format=".1e", metrics_text_delimiter=" | ")
    fit(
        Own(theme=theme, console_kwargs={"file": stream, "width": 200}),
        enable_progress_bar=True,
        max_epochs=1,
        module=Module(),
    )
    assert "OWN 5" in stream.getvalue() and "v: 1.5e+00 | end: 9.0e+00" in stream.getvalue()


def test_rich_tasks_are_there_while_they_run():
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(trainer.progress_bar_callback.train_progress_bar.total)

    bar = RichProgressBar(console_kwargs={"file": io.StringIO()})
    fit(bar, Look(), enable_progress_bar=True, max_epochs=1)
    assert seen == [5] * 5 and bar.progress is None
    with pytest.raises(TypeError, match="no bar for 'test'"):
        _ = bar.test_progress_bar


# ---------------------------------------------------------------------- lines


def lines_of(module=None, interval_s=30.0, **arguments):
    stream = io.StringIO()
    fit(
        PlainProgressBar(stream=stream, interval_s=interval_s),
        module=module or Module(),
        enable_progress_bar=True,
        **arguments,
    )
    return stream.getvalue().splitlines()


def test_a_line_an_epoch_with_its_metrics():
    lines = lines_of(train=4, max_epochs=2, num_sanity_val_steps=1)
    assert len(lines) == 2
    assert lines[0].startswith("Epoch 0/1: 4 batches in ") and "/s), " in lines[0]
    assert lines[1].endswith("step_loss=7, v=2.5, end=10")


def test_long_epochs_have_lines_in_between(clock):
    lines = lines_of(train=4, max_epochs=1, interval_s=0.0)
    assert [line.split(" in ")[0] for line in lines if line.startswith("Epoch")] == [
        "Epoch 0/0: 1/4 batches (25 %)", "Epoch 0/0: 2/4 batches (50 %)", "Epoch 0/0: 3/4 batches (75 %)",
        "Epoch 0/0: 4 batches",
    ]  # fmt: skip


def test_the_other_loops_have_a_line_each(capsys):
    stream = io.StringIO()
    run(PlainProgressBar(stream=stream))
    assert [line.split(" in ")[0] for line in stream.getvalue().splitlines()[2:]] == [
        "Validation DataLoader 0: 2 batches", "Testing DataLoader 0: 3 batches", "Predicting DataLoader 0: 3 batches",
    ]  # fmt: skip


def test_lines_go_to_standard_error(capsys):
    fit(PlainProgressBar(), enable_progress_bar=True, max_epochs=1)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("Epoch 0/0: 5 batches")


# ---------------------------------------------------------------------- which one


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("out", "err", "rich", "kind"),
    [
        (Terminal, Terminal, True, RichProgressBar),
        (Terminal, Terminal, False, TQDMProgressBar),
        (io.StringIO, Terminal, True, RichProgressBar),
        (io.StringIO, Terminal, False, TQDMProgressBar),
        (io.StringIO, io.StringIO, True, PlainProgressBar),
    ],
)
def test_the_bar_that_fits_the_output(out, err, rich, kind, monkeypatch):
    from bolide.callbacks.progress import choice

    monkeypatch.setattr(sys, "stdout", out())
    monkeypatch.setattr(sys, "stderr", err())
    monkeypatch.setattr(choice, "find_spec", lambda name: object() if rich else None)
    assert type(default_progress_bar()) is kind


def test_a_trainer_takes_it_by_itself():
    made = pl.Trainer(logger=DummyLogger(), accelerator="cpu")
    assert type(made.progress_bar_callback) is PlainProgressBar


def test_rich_missing_says_what_to_install(monkeypatch):
    from bolide.callbacks.progress import rich_progress

    monkeypatch.setattr(rich_progress, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "bolide\[rich\]"'):
        RichProgressBar()


def test_an_own_bar_may_be_nothing_but_hooks(capsys):
    class Own(ProgressBar):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.print("own", self.get_metrics(trainer, pl_module))

    fit(Own(), module=Scored(log_train=True), enable_progress_bar=True, max_epochs=1)
    assert "own {'step_loss': 4.0}" in capsys.readouterr().out
