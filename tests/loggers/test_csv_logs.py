import csv
from argparse import Namespace

import pytest
import torch
import yaml

from bolide.checkpoint import io
from bolide.core.errors import ConfigError
from bolide.loggers import CSVLogger
from bolide.loggers.csv_logs import ExperimentWriter
from tests.callbacks.support import Scored, fit, trainer


def text_of(logger):
    return io.read_bytes(io.join(logger.log_dir, "metrics.csv")).decode()


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_columns_are_sorted_and_a_new_one_rewrites_the_file(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"b": 1, "a": torch.tensor(2.5)}, step=0)
    logger.log_metrics({"c": 3.25, "epoch": 0}, step=1)
    logger.save()
    assert text_of(logger) == "a,b,c,epoch,step\n2.5,1,,,0\n,,3.25,0,1\n"
    logger.log_metrics({"a": 1e-8}, step=2)
    logger.save()
    logger.log_metrics({"A": True}, step=3)
    logger.finalize("success")
    assert text_of(logger) == "A,a,b,c,epoch,step\n,2.5,1,,,0\n,,,3.25,0,1\n,1e-08,,,,2\nTrue,,,,,3\n"


def test_without_a_step_rows_are_counted(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({"a": 1})
    logger.save()
    logger.log_metrics({"a": 2})
    logger.save()
    assert text_of(logger) == "a,step\n1,0\n2,1\n"


def test_it_is_written_every_n_steps(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=2, prefix="p")
    logger.log_metrics({"a": 1}, step=0)
    assert not (tmp_path / "lightning_logs").exists()
    logger.log_metrics({"a": 2}, step=1)
    assert text_of(logger) == "p-a,step\n1,0\n2,1\n"


def test_nothing_logged_writes_nothing(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.save()
    logger.finalize("success")
    assert list(tmp_path.iterdir()) == []


def test_hyperparameters(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams(Namespace(lr=0.1))
    logger.log_hyperparams({"net": {"width": 3}})
    assert yaml.safe_load((tmp_path / "lightning_logs/version_0/hparams.yaml").read_text()) == {
        "lr": 0.1,
        "net": {"width": 3},
    }


def test_folders(tmp_path):
    logger = CSVLogger(tmp_path, name="n")
    assert (logger.name, logger.version, logger.save_dir) == ("n", 0, str(tmp_path))
    assert logger.root_dir == str(tmp_path / "n") and logger.log_dir == str(tmp_path / "n" / "version_0")
    assert CSVLogger(tmp_path, name=None, version="run").log_dir == str(tmp_path / "run")
    logger.log_metrics({"a": 1}, 0)
    logger.save()
    assert CSVLogger(tmp_path, name="n").version == 1 and logger.version == 0


def test_a_run_that_is_there_goes_on(tmp_path):
    first = CSVLogger(tmp_path, version=0)
    first.log_metrics({"a": 1, "b": 2}, step=0)
    first.save()
    second = CSVLogger(tmp_path, version=0)
    second.log_metrics({"b": 3}, step=1)
    second.save()
    assert text_of(second) == "a,b,step\n1,2,0\n,3,1\n"
    third = CSVLogger(tmp_path, version=0)
    third.log_metrics({"c": 4}, step=2)
    third.save()
    assert text_of(third) == "a,b,c,step\n1,2,,0\n,3,,1\n,,4,2\n"


def test_a_line_that_was_cut_short_goes(tmp_path):
    (tmp_path / "metrics.csv").write_text("a,step\n1,0\n2,")
    writer = ExperimentWriter(str(tmp_path))
    writer.log_metrics({"a": 3}, 1)
    writer.save()
    assert (tmp_path / "metrics.csv").read_text() == "a,step\n1,0\n3,1\n"


def test_text_with_separators_stays_whole(tmp_path):
    logger = CSVLogger(tmp_path, version="x")
    logger.log_metrics({"a,b": 'say "yes"\nor no', "c": float("nan")}, step=0)
    logger.save()
    (row,) = csv.DictReader(text_of(logger).splitlines(keepends=True))
    assert row == {"a,b": 'say "yes"\nor no', "c": "nan", "step": "0"}


def test_remote_folders(tmp_path):
    import fsspec

    logger = CSVLogger("memory://logs")
    logger.log_metrics({"a": 1}, 0)
    logger.save()
    logger.log_metrics({"a": 2}, 1)
    logger.save()
    assert text_of(logger) == "a,step\n1,0\n2,1\n" and CSVLogger("memory://logs").version == 1
    fsspec.filesystem("memory").rm("/logs", recursive=True)


class Logs(Scored):
    def training_step(self, batch, batch_idx):
        self.log("loss", float(self.global_step))
        return self.w.sum()


def test_a_fit_that_is_resumed_has_all_its_steps_in_one_file(tmp_path):
    def part(epochs, **run):
        logger = CSVLogger(tmp_path, version=0)
        return fit(module=Logs(), train=4, val=0, max_epochs=epochs, logger=logger, log_every_n_steps=1, fit=run)

    part(1).save_checkpoint(tmp_path / "x.ckpt")
    part(2, ckpt_path=str(tmp_path / "x.ckpt"))
    rows = rows_of(tmp_path / "lightning_logs/version_0/metrics.csv")
    assert [int(row["step"]) for row in rows] == list(range(8))
    assert [float(row["loss"]) for row in rows] == list(range(8))


def test_a_trainer_writes_epochs_and_steps(tmp_path):
    fit(module=Scored((1, 2), log_end=True), train=2, max_epochs=2, logger=CSVLogger(tmp_path))
    rows = rows_of(tmp_path / "lightning_logs/version_0/metrics.csv")
    assert list(rows[0]) == ["end", "epoch", "step", "v"]
    assert [(row["epoch"], row["step"], row["v"], row["end"]) for row in rows] == [
        ("0", "1", "1.0", ""), ("0", "1", "", "0.0"), ("1", "3", "2.0", ""), ("1", "3", "", "1.0"),
    ]  # fmt: skip
    assert trainer(logger=CSVLogger(tmp_path)).log_dir == str(tmp_path / "lightning_logs/version_1")


def test_the_file_is_lightnings(tmp_path):
    theirs = pytest.importorskip("lightning.pytorch.loggers").CSVLogger
    texts = []
    for kind in (CSVLogger, theirs):
        logger = kind(tmp_path / kind.__module__.partition(".")[0])
        for step, row in enumerate([{"b": 1, "a": 0.1}, {"a": 1e-8, "z": torch.tensor(2.5)}, {"B": float("nan")}]):
            logger.log_metrics(row, step)
            logger.save()
        logger.finalize("success")
        texts.append(text_of(logger).replace("\r\n", "\n"))
    assert texts[0] == texts[1]


def test_a_rhythm_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="flush_logs_every_n_steps=0"):
        CSVLogger(tmp_path, flush_logs_every_n_steps=0)
