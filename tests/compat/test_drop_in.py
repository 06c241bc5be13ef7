"""The drop-in: Lightning's names are Bolide's, what is missing is said, and unchanged scripts run.

Everything runs in processes of its own, since the test's own process may hold the real Lightning.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"

STATEMENTS: dict[str, str | None] = {
    # statement: what the error says, or None where it runs
    "import lightning as L; assert L.Trainer is bolide.Trainer": None,
    "import lightning.pytorch as pl; assert pl.LightningModule is bolide.LightningModule": None,
    "import pytorch_lightning as pl; assert pl.Callback is bolide.Callback": None,
    "import lightning; assert lightning.pytorch.callbacks.Timer is bolide.callbacks.Timer": None,
    "from lightning import seed_everything, LightningDataModule": None,
    "from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint": None,
    "from pytorch_lightning.callbacks.model_checkpoint import ModelCheckpoint as M; "
    "assert M is bolide.callbacks.ModelCheckpoint": None,
    "from pytorch_lightning.core.lightning import LightningModule": None,
    "from lightning.pytorch.callbacks import *; assert ModelCheckpoint is bolide.callbacks.ModelCheckpoint": None,
    "from lightning.fabric.utilities.rank_zero import rank_zero_only": None,
    "from pytorch_lightning.utilities.distributed import rank_zero_only": None,
    "import pytorch_lightning as pl; assert pl.__version__.startswith('2.')": None,
    "import pytorch_lightning as pl; assert not hasattr(pl, 'nothing')": None,
    "import importlib.util as u; assert u.find_spec('lightning.app') is None": None,
    "import importlib.util as u; assert u.find_spec('lightning.pytorch') is not None": None,
    "import lightning.pytorch as pl; assert 'Timer' in dir(pl.callbacks)": None,
    "from lightning import Fabric": "ImportError: cannot import name 'Fabric' from 'lightning': there is no Fabric in "
    "Bolide. Write your own loop around Trainer.steps(",
    "import lightning as L; L.Fabric": "AttributeError: module 'lightning' has no attribute 'Fabric': there is no Fab",
    "from lightning.fabric import Fabric": "Trainer.steps(",
    "from lightning.pytorch.strategies import XLAStrategy": "ImportError: cannot import name 'XLAStrategy' from "
    "'lightning.pytorch.strategies'",
    "from lightning.pytorch.callbacks import StochasticWeightAveraging": "StochasticWeightAveraging is not in this ver",
    "from lightning.pytorch.callbacks.finetuning import BaseFinetuning": "BaseFinetuning is not in this version",
    "from lightning.pytorch.callbacks import EarlyStoping": "Bolide, which stands in for Lightning here, has no "
    "EarlyStoping. Did you mean 'EarlyStopping'?",
    "import lightning.nothing": "ModuleNotFoundError: No module named 'lightning.nothing': Bolide, which stands in for "
    "Lightning here, does not have it.",
    "from lightning.pytorch import loops": "Trainer.steps(",
    "import pytorch_lightning.metrics": "import torchmetrics",
    "from pytorch_lightning.metrics import Accuracy": "import torchmetrics",
    "from pytorch_lightning import metrics": "import torchmetrics",
    "from pytorch_lightning.callbacks import GPUStatsMonitor": "it is DeviceStatsMonitor today",
    "from pytorch_lightning.loggers import TestTubeLogger": "use CSVLogger or TensorBoardLogger",
    "from lightning.pytorch.cli import LightningCLI": "LightningCLI is not built in this version",
    "from pytorch_lightning.plugins import DDPPlugin": "strategy=",
}

TRY_ALL = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
import bolide
from bolide.compat import drop_in
from bolide.compat.foreign_paths import foreign_modules

drop_in.install()
drop_in.install()  # a second call changes nothing
assert sum(isinstance(finder, drop_in.Finder) for finder in sys.meta_path) == 1
found = {}
for statement in json.loads(sys.stdin.read()):
    try:
        exec(statement, {"bolide": bolide})
        found[statement] = None
    except Exception as error:
        found[statement] = f"{type(error).__name__}: {error}"
for name in foreign_modules():
    module = importlib.import_module(name)
    for public in module.__all__:
        assert getattr(module, public) is not None
    dir(module)
drop_in.uninstall()
assert not drop_in.is_installed()
assert "lightning" not in sys.modules
print(json.dumps(found))
"""


def run(arguments, cwd, stdin=""):
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=110, cwd=cwd, env=environment, input=stdin
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    done = run(["-c", TRY_ALL], tmp_path_factory.mktemp("drop_in"), json.dumps(list(STATEMENTS)))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_imports(statement, outcomes):
    expected = STATEMENTS[statement]
    if expected is None:
        assert outcomes[statement] is None
    else:
        assert expected in outcomes[statement]


def test_a_lightning_that_was_imported_before_is_an_error(tmp_path):
    # a stand-in of that name spares the import of the real one
    (tmp_path / "lightning").mkdir()
    (tmp_path / "lightning" / "__init__.py").write_text("")
    done = run(["-c", "import lightning\nfrom bolide.compat import drop_in\ndrop_in.install()"], tmp_path)
    assert done.returncode == 1
    assert "'lightning' was imported before bolide.compat.drop_in.install()" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["missing.py"], ["-m"], ["-x", "train.py"]])
def test_without_a_script_it_says_how_it_is_called(arguments, tmp_path):
    done = run(["-m", "bolide.compat.drop_in", *arguments], tmp_path)
    assert done.returncode == 2
    assert "usage: python -m bolide.compat.drop_in" in done.stderr
    assert "Traceback" not in done.stderr


TUTORIAL_2021 = """
    import os
    import sys
    from argparse import ArgumentParser

    import pytorch_lightning as pl
    import torch
    from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
    from pytorch_lightning.callbacks.lr_monitor import LearningRateMonitor
    from pytorch_lightning.loggers import CSVLogger
    from pytorch_lightning.utilities.seed import seed_everything
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset, random_split

    import helper  # beside the script

    class LitClassifier(pl.LightningModule):
        def __init__(self, hidden_dim=8, learning_rate=1e-2):
            super().__init__()
            self.save_hyperparameters()
            self.l1 = nn.Linear(4, self.hparams.hidden_dim)
            self.l2 = nn.Linear(self.hparams.hidden_dim, 2)

        def forward(self, x):
            return self.l2(torch.relu(self.l1(x)))

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.log("val_loss", F.cross_entropy(self(x), y), prog_bar=True)

        def test_step(self, batch, batch_idx):
            x, y = batch
            self.log("test_acc", (self(x).argmax(1) == y).float().mean())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)

    if __name__ == "__main__":
        seed_everything(1234)
        parser = ArgumentParser()
        parser.add_argument("--max_epochs", type=int, default=2)
        args = parser.parse_args()
        x = torch.randn(96, 4)
        data = TensorDataset(x, (x.sum(1) > 0).long())
        train, val = random_split(data, [64, 32])
        checkpoint = ModelCheckpoint(dirpath="saved", filename="{epoch}-{val_loss:.2f}", monitor="val_loss", mode="min")
        trainer = pl.Trainer(
            gpus=0, max_epochs=args.max_epochs, progress_bar_refresh_rate=0, weights_summary=None, amp_backend="native",
            checkpoint_callback=checkpoint, logger=CSVLogger("logs"), num_sanity_val_steps=1,
            callbacks=[EarlyStopping(monitor="val_loss"), LearningRateMonitor("epoch")],
        )
        model = LitClassifier()
        trainer.fit(model, DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=16))
        result = trainer.test(dataloaders=DataLoader(val, batch_size=16))
        again = LitClassifier.load_from_checkpoint(checkpoint.best_model_path)
        assert again.hparams.hidden_dim == 8
        assert os.path.basename(sys.argv[0]) == "train.py", sys.argv
        assert helper.WORD == "beside"
        print("RESULT", sorted(result[0]), trainer.global_step, trainer.current_epoch, pl.__name__)
"""

TUTORIAL_2025 = """
    import lightning as L
    import torch
    from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, Timer
    from lightning.pytorch.demos.boring_classes import RandomDataset
    from lightning.pytorch.loggers import TensorBoardLogger
    from lightning.pytorch.utilities import grad_norm, rank_zero_only
    from lightning.pytorch.utilities.types import STEP_OUTPUT, OptimizerLRScheduler
    from torch.utils.data import DataLoader

    class Encoder(L.LightningModule):
        def __init__(self, width: int = 4):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Linear(8, width)
            self.seen = []

        def training_step(self, batch, batch_idx) -> STEP_OUTPUT:
            loss = self.net(batch).pow(2).mean()
            self.log("loss", loss, prog_bar=True)
            return loss

        def on_before_optimizer_step(self, optimizer):
            self.log_dict(grad_norm(self.net, norm_type=2))

        def validation_step(self, batch, batch_idx):
            loss = self.net(batch).pow(2).mean()
            self.seen.append(loss)
            self.log("val_loss", loss)

        def on_validation_epoch_end(self):
            self.log("val_mean", torch.stack(self.seen).mean())
            self.seen.clear()

        def predict_step(self, batch, batch_idx):
            return self.net(batch)

        def configure_optimizers(self) -> OptimizerLRScheduler:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    class Data(L.LightningDataModule):
        def __init__(self, batch_size: int = 4):
            super().__init__()
            self.save_hyperparameters()

        def setup(self, stage: str):
            self.data = RandomDataset(8, 16)

        def train_dataloader(self):
            return DataLoader(self.data, batch_size=self.hparams.batch_size, shuffle=True)

        def val_dataloader(self):
            return DataLoader(self.data, batch_size=self.hparams.batch_size)

        def predict_dataloader(self):
            return DataLoader(self.data, batch_size=self.hparams.batch_size)

    @rank_zero_only
    def report(*what):
        print("RESULT", *what)

    L.seed_everything(7, workers=True)
    trainer = L.Trainer(
        max_epochs=2, accelerator="auto", devices="auto", precision="bf16-mixed", gradient_clip_val=1.0,
        accumulate_grad_batches=2, logger=TensorBoardLogger("logs", name="run"), log_every_n_steps=1,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(monitor="val_loss", save_last=True), LearningRateMonitor(), Timer()],
    )
    data = Data()
    trainer.fit(Encoder(), datamodule=data)
    last = trainer.checkpoint_callback.last_model_path
    trainer.fit_loop.max_epochs = 3
    trainer.fit(Encoder(), datamodule=data, ckpt_path=last)
    metrics = sorted(name for name in trainer.callback_metrics if "grad" not in name)
    outputs = trainer.predict(Encoder.load_from_checkpoint(last), datamodule=data)
    assert Data.load_from_checkpoint(last).hparams.batch_size == 4
    report(trainer.global_step, trainer.current_epoch, len(outputs), metrics)
"""

TUTORIAL_GAN = """
    from bolide.compat import drop_in

    drop_in.install()

    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.utilities.combined_loader import CombinedLoader
    from torch import nn
    from torch.utils.data import DataLoader

    class GAN(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.discriminator = nn.Linear(2, 2), nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            first, second = self.optimizers()
            real = batch["a"] + batch["b"]
            self.toggle_optimizer(first)
            loss = -self.discriminator(self.generator(real)).mean()
            first.zero_grad()
            self.manual_backward(loss)
            first.step()
            self.untoggle_optimizer(first)
            self.log("g", loss, prog_bar=True)
            loss = self.discriminator(real).mean()
            second.zero_grad()
            self.manual_backward(loss)
            second.step()
            self.log_dict({"d": loss})

        def configure_optimizers(self):
            first = torch.optim.Adam(self.generator.parameters())
            return [first, torch.optim.Adam(self.discriminator.parameters())], []

    loaders = {"a": DataLoader(torch.randn(8, 2), 2), "b": DataLoader(torch.randn(4, 2), 2)}
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(GAN(), CombinedLoader(loaders, "max_size_cycle"))
    print("RESULT", trainer.num_training_batches, trainer.current_epoch, sorted(trainer.logged_metrics))
"""


def test_a_tutorial_of_2021(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(textwrap.dedent(TUTORIAL_2021))
    (tmp_path / "project" / "helper.py").write_text("WORD = 'beside'\n")
    done = run(["-m", "bolide.compat.drop_in", "project/train.py", "--max_epochs", "3"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RESULT ['test_acc'] 12 3 pytorch_lightning" in done.stdout
    for old in ("gpus=0", "progress_bar_refresh_rate=0", "weights_summary=None", "checkpoint_callback="):
        assert f"Trainer({old}" in done.stderr
    assert list((tmp_path / "saved").glob("epoch=*-val_loss=*.ckpt"))
    assert (tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv").exists()


def test_a_tutorial_of_2025(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "train.py").write_text(textwrap.dedent(TUTORIAL_2025))
    done = run(["-m", "bolide.compat.drop_in", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RESULT 6 3 4 ['loss', 'lr-SGD', 'val_loss', 'val_mean']" in done.stdout
    assert list((tmp_path / "logs" / "run" / "version_0").glob("events.out.tfevents.*"))


def test_installed_within_a_script(tmp_path):
    (tmp_path / "gan.py").write_text(textwrap.dedent(TUTORIAL_GAN))
    done = run(["gan.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RESULT 4 1 ['d', 'g']" in done.stdout


def test_modules_and_exit_codes(tmp_path):
    (tmp_path / "job.py").write_text(
        "import sys, lightning\nprint(__name__, sys.argv[1:], lightning.Trainer.__module__)\nsys.exit(7)\n"
    )
    for arguments in (["job.py", "a"], ["-m", "job", "a"]):
        done = run(["-m", "bolide.compat.drop_in", *arguments], tmp_path)
        assert done.stdout.strip() == "__main__ ['a'] bolide.trainer.trainer"
        assert done.returncode == 7
