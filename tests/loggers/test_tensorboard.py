import warnings
from contextlib import nullcontext

import pytest
import torch
import yaml

import bolide as pl
from bolide.core.errors import MissingPackageError
from bolide.loggers import TensorBoardLogger
from bolide.loggers import tensorboard as tensorboard_module
from tests.callbacks.support import Scored, fit

pytest.importorskip("tensorboard")


def scalars(folder):
    """(tag, step, value) of every scalar below a folder, in the order of the files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.append((value.tag, event.step, value.tensor.float_val[0]))
    return found


def test_many_numbers_of_one_call_read_back_as_one_each(tmp_path):
    metrics = {"a": 1.5, "b/c d": 2, "t": torch.tensor([3.25]), "yes": True, "big": 1e30, "i": torch.tensor(7)}
    logger = TensorBoardLogger(tmp_path / "ours")
    logger.log_metrics(metrics, step=3)
    logger.log_metrics({"a": 9.0})
    logger.finalize("success")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "torchs"))
    for name, value in metrics.items():
        writer.add_scalar(name, value, 3)
    writer.add_scalar("a", 9.0)
    writer.close()
    assert scalars(tmp_path / "ours") == scalars(tmp_path / "torchs")


def test_numbers_that_are_not_finite(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_metrics({"x": float("inf")}, 0)
    logger.finalize("success")
    assert scalars(tmp_path) == [("x", 0, float("inf"))]


def test_dictionaries_are_drawn_together(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_metrics({"d": {"x": 1.0, "y": 2.0}, "a": 3.0}, step=1)
    logger.finalize("success")
    assert sorted(scalars(tmp_path)) == [("a", 1, 3.0), ("d", 1, 1.0), ("d", 1, 2.0)]
    assert {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir() if path.is_dir()} == {"d_x", "d_y"}


@pytest.mark.parametrize("value", ["text", torch.zeros(3), None, [1]])
def test_what_is_no_number_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match="metrics are numbers"):
        TensorBoardLogger(tmp_path).log_metrics({"x": value}, 0)


def test_folders(tmp_path, monkeypatch):
    logger = TensorBoardLogger(tmp_path, name="n", sub_dir="s")
    assert (logger.name, logger.version, logger.save_dir, logger.sub_dir) == ("n", 0, str(tmp_path), "s")
    assert logger.root_dir == str(tmp_path / "n") and logger.log_dir == str(tmp_path / "n/version_0/s")
    assert TensorBoardLogger(tmp_path, name=None, version="run").log_dir == str(tmp_path / "run")
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    assert TensorBoardLogger(tmp_path).version == 0 and tensorboard_module.slurm_version() == 1234
    logger.experiment.flush()
    assert TensorBoardLogger(tmp_path, name="n").version == 1
    logger.finalize("success")


def test_hyperparameters_have_a_metric(tmp_path):
    logger = TensorBoardLogger(tmp_path, prefix="p")
    logger.log_hyperparams({"lr": 0.1, "net": {"depth": 2, "kind": torch.nn.ReLU}, "t": torch.tensor(1.5), "n": None})
    logger.log_hyperparams({"b": 1}, metrics={"score": 2.0}, step=4)
    logger.log_hyperparams({"c": 1}, metrics=3.0)
    logger.finalize("success")
    assert scalars(tmp_path) == [("p-hp_metric", 0, -1.0), ("p-score", 4, 2.0), ("p-hp_metric", 0, 3.0)]
    written = yaml.safe_load((tmp_path / "lightning_logs/version_0/hparams.yaml").read_text())
    assert written["net"] == {"depth": 2, "kind": "torch.nn.modules.activation.ReLU"} and written["c"] == 1


def test_without_a_default_metric_nothing_is_written_for_it(tmp_path):
    logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
    logger.log_hyperparams({"lr": 0.1})
    logger.finalize("success")
    assert scalars(tmp_path) == [] and (tmp_path / "lightning_logs/version_0/hparams.yaml").exists()


def test_it_can_be_used_again_after_its_end(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_metrics({"a": 1.0}, 0)
    logger.finalize("success")
    logger.log_metrics({"a": 2.0}, 1)
    logger.finalize("success")
    assert sorted(scalars(tmp_path)) == [("a", 0, 1.0), ("a", 1, 2.0)]


class Net(Scored):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)
        self.example_input_array = torch.ones(1, 3)

    def forward(self, x):
        return self.drop(self.layer(x))


def test_the_graph(tmp_path):
    module = Net()
    before = torch.get_rng_state()
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    logger.log_graph(module)
    logger.finalize("success")
    assert module.drop.training and torch.equal(torch.get_rng_state(), before)
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (path,) = tmp_path.rglob("events.out.tfevents.*")
    graphs = [event.graph_def for event in EventFileLoader(str(path)).Load() if event.graph_def]
    assert len(graphs) == 1 and b"layer" in graphs[0]


def test_a_fit_logs_the_graph(tmp_path):
    fit(module=Net(), train=2, max_epochs=1, logger=TensorBoardLogger(tmp_path, log_graph=True))
    (path,) = tmp_path.rglob("events.out.tfevents.*")
    assert b"layer" in path.read_bytes()


def test_the_graph_needs_an_example(tmp_path):
    with pytest.warns(UserWarning, match="example_input_array"):
        TensorBoardLogger(tmp_path, log_graph=True).log_graph(Scored())
    TensorBoardLogger(tmp_path / "x").log_graph(Net())
    assert not (tmp_path / "x").exists()


def test_a_fit_logs_to_it(tmp_path):
    module = Scored((1, 2), log_train=True)
    fit(module=module, train=2, max_epochs=2, logger=TensorBoardLogger(tmp_path), log_every_n_steps=1)
    found = scalars(tmp_path)
    assert [(step, value) for tag, step, value in found if tag == "step_loss"] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [(step, value) for tag, step, value in found if tag == "v"] == [(1, 1), (3, 2)]
    folder = tmp_path / "lightning_logs/version_0"
    assert (folder / "hparams.yaml").exists() and len(list(folder.glob("events.out.tfevents.*"))) == 1


class Stopped(Exception):
    """What breaks a run off."""


class Breaks(Scored):
    """Logs a number and a dictionary a step, and breaks off at a step."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def training_step(self, batch, batch_idx):
        if self.global_step == self.at:
            raise Stopped
        self.log("loss", float(self.global_step))
        self.logger.log_metrics({"pair": {"x": float(self.global_step), "y": 0.0}}, self.global_step)
        return self.w.sum()


def attempt(folder, at, ckpt_path):
    logger = TensorBoardLogger(folder, name="", version="")
    keep = pl.callbacks.ModelCheckpoint(folder / "kept", every_n_train_steps=3, save_top_k=-1)
    run = {"ckpt_path": ckpt_path}
    fit(keep, module=Breaks(at), train=5, val=0, max_epochs=2, logger=logger, log_every_n_steps=1, fit=run)


def points(folder):
    return sorted(found for found in scalars(folder) if found[0] in ("loss", "pair"))


def test_a_run_that_went_on_has_the_history_of_one_that_nobody_stopped(tmp_path):
    attempt(tmp_path / "right", 99, None)
    for at, ckpt_path in ((5, None), (8, "auto"), (99, "auto")):
        with pytest.raises(Stopped) if at < 99 else nullcontext():
            attempt(tmp_path / "found", at, ckpt_path)
    right = points(tmp_path / "right")
    assert [(step, value) for tag, step, value in right if tag == "loss"] == [(i, i) for i in range(10)]
    assert points(tmp_path / "found") == right


def test_a_run_that_starts_over_shows_no_points_of_the_attempt_before(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Stopped):
        attempt(tmp_path, 2, "auto")  # no checkpoint was written
    attempt(tmp_path, 99, "auto")
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("loss")
    assert [(point.step, point.value) for point in shown] == [(i, i) for i in range(10)]
    assert len([found for found in scalars(tmp_path) if found[0] == "loss"]) == 12  # they are hidden, not lost


def test_going_on_touches_no_file_of_another_run(tmp_path):
    def logged(step):
        logger = TensorBoardLogger(tmp_path, name="", version="", filename_suffix=".mine")
        logger.log_metrics({"a": 1.0, "d": {"x": 2.0}}, step)
        return logger

    logger = logged(0)
    position = logger.position()
    assert sorted(position["files"]) == sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*tfevents*"))
    logger.log_metrics({"a": 1.0, "d": {"x": 2.0}}, 1)
    logger.finalize("failed")
    logged(2).finalize("success")  # another run, later and in the same folder
    again = logged(3)
    again.go_on(position)
    again.log_metrics({"a": 1.0, "d": {"x": 2.0}}, 4)
    again.finalize("success")
    assert all(file.name.endswith(".mine") for file in tmp_path.rglob("*tfevents*"))
    assert sorted(step for tag, step, _ in scalars(tmp_path) if tag == "a") == [0, 2, 3, 4]
    assert sorted(step for tag, step, _ in scalars(tmp_path) if tag == "d") == [0, 2, 3, 4]
    last = logged(5)
    last.go_on(position)  # what the attempt before has written goes
    last.finalize("success")
    assert sorted(step for tag, step, _ in scalars(tmp_path) if tag == "a") == [0, 2, 5]


@pytest.mark.parametrize("mark", ["", ".", "0", "*", "../../x1", None, 3])
def test_a_mark_that_is_none_is_not_believed(tmp_path, mark):
    other = tmp_path / "events.out.tfevents.1.host.2.0"
    other.write_bytes(b"0123456789")
    logger = TensorBoardLogger(tmp_path, name="", version="")
    logger.go_on({"mark": mark, "files": {other.name: 3}})
    logger.finalize("success")
    assert other.read_bytes() == b"0123456789"


def test_a_file_that_lost_its_end_is_not_filled_up(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    logger.log_metrics({"a": 1.0}, 0)
    position = logger.position()
    logger.finalize("failed")
    (file,) = tmp_path.glob("*tfevents*")
    file.write_bytes(file.read_bytes()[:50])
    again = TensorBoardLogger(tmp_path, name="", version="")
    again.go_on(position)
    again.finalize("success")
    assert file.stat().st_size == 50


def test_missing_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r'pip install "bolide\[tensorboard\]"'):
        TensorBoardLogger(tmp_path)
