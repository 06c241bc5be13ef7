"""What notes every hook that is called, and the pieces that expected traces are written with.

A line of an expected trace names the receivers (CB a callback, LM the module, DM the datamodule) and the hooks that
they hear: "CB LM: on_fit_start, on_train_start" is on_fit_start told to CB, to LM, then on_train_start to both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import bolide as pl

QUIET: dict[str, Any] = {
    "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
    "num_sanity_val_steps": 0, "enable_checkpointing": False, "max_epochs": 1,
}  # fmt: skip

SHARED_HOOKS = """
setup teardown on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
on_train_batch_start on_train_batch_end on_validation_start on_validation_end on_validation_epoch_start
on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_test_start on_test_end on_test_epoch_start
on_test_epoch_end on_test_batch_start on_test_batch_end on_predict_start on_predict_end on_predict_epoch_start
on_predict_epoch_end on_predict_batch_start on_predict_batch_end on_before_zero_grad on_before_backward
on_after_backward on_before_optimizer_step on_save_checkpoint on_load_checkpoint state_dict load_state_dict
""".split()
CALLBACK_HOOKS = [*SHARED_HOOKS, "on_sanity_check_start", "on_sanity_check_end", "on_exception"]
MODULE_HOOKS = [*SHARED_HOOKS, *"""
prepare_data configure_callbacks configure_model on_before_batch_transfer transfer_batch_to_device
on_after_batch_transfer optimizer_step optimizer_zero_grad backward configure_gradient_clipping clip_gradients
lr_scheduler_step on_validation_model_zero_grad on_validation_model_eval on_validation_model_train on_test_model_eval
on_test_model_train on_predict_model_eval zero_grad
""".split()]  # fmt: skip
DATAMODULE_HOOKS = """
prepare_data setup teardown train_dataloader val_dataloader test_dataloader predict_dataloader state_dict
load_state_dict on_exception
""".split()

Trace = list[str]


def listening(base: type[Any], names: list[str], who: str, trace: Trace) -> type[Any]:
    """A subclass of `base` that notes each of `names` when it is called, and then does what `base` does."""

    def noting(name: str) -> Callable[..., Any]:
        inherited = getattr(base, name)

        def hook(self: Any, *args: Any, **kwargs: Any) -> Any:
            trace.append(f"{who} {name}")
            return inherited(self, *args, **kwargs)

        return hook

    return type(base.__name__, (base,), {name: noting(name) for name in names})


class Net(pl.LightningModule):
    """One weight; a scheduler that steps once an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))
        self.trace: Trace = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.trace.append("LM training_step")
        return (self.w * batch[0]).sum()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.trace.append("LM validation_step")

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.trace.append("LM test_step")

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.trace.append("LM predict_step")

    def configure_optimizers(self) -> Any:
        self.trace.append("LM configure_optimizers")
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class Data(pl.LightningDataModule):
    """So many training batches, one batch of all else."""

    def __init__(self, train_batches: int) -> None:
        super().__init__()
        self.train_batches = train_batches

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(self.train_batches, 1)))

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(1, 1)))

    test_dataloader = predict_dataloader = val_dataloader

    def state_dict(self) -> dict[str, Any]:
        return {"position": 1}


class Stateful(pl.Callback):
    """A callback with something to save."""

    def state_dict(self) -> dict[str, Any]:
        return {"count": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {"count": 1}


def heard(net: type[Net] = Net, train_batches: int = 1, **settings: Any) -> tuple[Trace, Any, Any, Any]:
    """A trace, and the trainer, module and datamodule whose hooks it notes."""
    trace: Trace = []
    module = listening(net, MODULE_HOOKS, "LM", trace)()
    module.trace = trace
    datamodule = listening(Data, DATAMODULE_HOOKS, "DM", trace)(train_batches)
    callback = listening(Stateful, CALLBACK_HOOKS, "CB", trace)()
    callbacks = [*settings.pop("callbacks", []), callback]
    return trace, pl.Trainer(**{**QUIET, "callbacks": callbacks, **settings}), module, datamodule


def lines(*texts: str) -> Trace:
    """The trace that the texts write out."""
    found: Trace = []
    for line in "\n".join(texts).splitlines():
        if line.strip():
            receivers, hooks = line.split(": ")
            found += [f"{who} {hook}" for hook in hooks.split(", ") for who in receivers.split()]
    return found


OPEN_FIT = """
    LM: configure_callbacks
    DM LM: prepare_data
    DM CB LM: setup
    LM: configure_model, configure_optimizers
    CB LM: on_fit_start
    LM: zero_grad
"""
CLOSE_FIT = """
    CB LM: on_train_end, on_fit_end
    DM CB LM: teardown
"""
TRANSFER = """
    LM: on_before_batch_transfer, transfer_batch_to_device, on_after_batch_transfer
"""
FIRST_OF_WINDOW = """
    LM: training_step
    CB LM: on_before_zero_grad
    LM: optimizer_zero_grad
    CB LM: on_before_backward
    LM: backward
    CB LM: on_after_backward
"""
LATER_IN_WINDOW = """
    LM: training_step
    CB LM: on_before_backward
    LM: backward
    CB LM: on_after_backward
"""
UPDATE = """
    CB LM: on_before_optimizer_step
    LM: configure_gradient_clipping, clip_gradients
"""
BATCH = f"""
    {TRANSFER}
    CB LM: on_train_batch_start
    LM: optimizer_step
    {FIRST_OF_WINDOW}
    {UPDATE}
"""
LAST_BATCH = f"""
    {BATCH}
    LM: lr_scheduler_step
    CB LM: on_train_batch_end
"""
VALIDATION = f"""
    LM: on_validation_model_eval
    CB LM: on_validation_start, on_validation_epoch_start
    {TRANSFER}
    CB LM: on_validation_batch_start
    LM: validation_step
    CB LM: on_validation_batch_end, on_validation_epoch_end, on_validation_end
    LM: on_validation_model_train
"""
SANITY_CHECK = f"""
    CB: on_sanity_check_start
    DM: val_dataloader
    {VALIDATION}
    CB: on_sanity_check_end
"""
