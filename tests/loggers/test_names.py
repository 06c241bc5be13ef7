import os

import pytest
import torch

import bolide.loggers as loggers
from bolide.callbacks import ModelCheckpoint
from bolide.loggers.logger import DummyLogger
from bolide.loggers.utilities import scan_checkpoints, version_text


def test_every_name_is_there():
    for name in loggers.__all__:
        assert getattr(loggers, name).__name__ == name


def test_what_is_not_built_says_so():
    with pytest.raises(ImportError, match="WandbLogger is not in this version of Bolide. Instead, "):
        from bolide.loggers import WandbLogger  # noqa: F401
    with pytest.raises(AttributeError, match="MLFlowLogger is not in this version"):
        _ = loggers.MLFlowLogger
    with pytest.raises(ImportError, match="cannot import name 'NoSuch'"):
        from bolide.loggers import NoSuch  # noqa: F401


def test_lightnings_names_are_all_known():
    theirs = pytest.importorskip("lightning.pytorch.loggers").__all__
    assert [name for name in theirs if name not in loggers.__all__ and name not in loggers._NOT_BUILT] == []


class Versioned(DummyLogger):
    def __init__(self, version):
        self._own = version

    @property
    def version(self):
        return self._own


def test_the_version_of_several():
    assert version_text([Versioned(3)]) == 3
    assert version_text([Versioned(3), Versioned("a"), Versioned(3)]) == "3_a"


def test_new_checkpoints_are_found_oldest_first(tmp_path):
    callback = ModelCheckpoint(dirpath=tmp_path, monitor="v", save_top_k=2)
    paths = [str(tmp_path / name) for name in ("a.ckpt", "b.ckpt", "last.ckpt")]
    for i, path in enumerate(paths):
        open(path, "w").close()
        os.utime(path, (1000.0 + i, 1000.0 + i))
    callback.best_k_models = {paths[1]: torch.tensor(1.0), paths[0]: torch.tensor(2.0), "gone": torch.tensor(3.0)}
    callback.best_model_path, callback.last_model_path = paths[1], paths[2]
    found = scan_checkpoints(callback, {paths[0]: 1000.0})
    assert [(path, tag) for _, path, _, tag in found] == [(paths[1], "best_k"), (paths[2], "latest")]
