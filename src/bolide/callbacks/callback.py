"""The base class of callbacks: every hook, none of which does anything.

Subclasses override what they need; what they leave is never called. Who calls: the engine, through core/hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from bolide.core.errors import MisconfigurationException
from bolide.core.hooks import stub

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class Callback:
    """Something that happens beside training: a hook for each moment of a run, and a state that is saved.

    Each hook is told the trainer and the module. A hook that is not overridden costs nothing.

    Example::

        class PrintLoss(Callback):
            def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
                if batch_idx % 100 == 0:
                    print(outputs["loss"].item())
    """

    monitors_metrics: ClassVar[bool] = False
    """Whether this callback acts on logged metrics: it then hears the end of an epoch after the module."""

    @property
    def state_key(self) -> str:
        """Under which name the state is saved; two callbacks of one class with a state need two names."""
        return type(self).__qualname__

    def _generate_state_key(self, **kwargs: Any) -> str:
        """A state key that tells callbacks of one class apart by their settings."""
        return f"{type(self).__qualname__}{kwargs!r}"

    def start_anew(self) -> None:
        """The trainer is about to train another module from the start: the state of the fits before is not its own."""
        return None

    def log(self, name: str, value: Any, **options: Any) -> None:
        """`LightningModule.log`, for callbacks; put in place by the trainer while it runs."""
        raise MisconfigurationException(f"{type(self).__name__}.log works inside the hooks of a running Trainer only.")

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        """`LightningModule.log_dict`, for callbacks; put in place by the trainer while it runs."""
        raise MisconfigurationException(
            f"{type(self).__name__}.log_dict works inside the hooks of a running Trainer only."
        )

    @stub
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fit, validate, test or predict begins (`stage`)."""

    @stub
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fit, validate, test or predict ends (`stage`)."""

    @stub
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit begins: the module is on its device, the optimizers are there."""

    @stub
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit ends."""

    @stub
    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The few validation batches before training begin."""

    @stub
    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The few validation batches before training are done."""

    @stub
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training begins."""

    @stub
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training ends."""

    @stub
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training epoch begins."""

    @stub
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A training epoch ends."""

    @stub
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """A training batch begins."""

    @stub
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A training batch ends; `outputs` is what the step returned, its loss detached."""

    @stub
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation begins."""

    @stub
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation ends; its metrics are in `trainer.callback_metrics`."""

    @stub
    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The validation epoch begins."""

    @stub
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The validation epoch ends; the last moment to log."""

    @stub
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch begins."""

    @stub
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A validation batch ends; `outputs` is what the step returned."""

    @stub
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing begins."""

    @stub
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Testing ends."""

    @stub
    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The test epoch begins."""

    @stub
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The test epoch ends; the last moment to log."""

    @stub
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch begins."""

    @stub
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A test batch ends; `outputs` is what the step returned."""

    @stub
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prediction begins."""

    @stub
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prediction ends."""

    @stub
    def on_predict_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The prediction epoch begins."""

    @stub
    def on_predict_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The prediction epoch ends."""

    @stub
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A prediction batch begins."""

    @stub
    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A prediction batch ends; `outputs` is what the step returned."""

    @stub
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """The run is ended by `exception`, which is raised again afterwards."""

    @stub
    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """The gradients are about to be cleared: after the forward pass, before the backward pass."""

    @stub
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """The backward pass of `loss` is about to run."""

    @stub
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The backward pass is done; the gradients are not clipped yet."""

    @stub
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """The optimizer is about to step; the gradients are not clipped yet."""

    @stub
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written; what is added to `checkpoint` must be tensors or plain data."""

    @stub
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read; nothing of it is in place yet."""

    @stub
    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: tensors and plain data."""
        return {}

    @stub
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
