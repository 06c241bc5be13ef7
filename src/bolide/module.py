"""`LightningModule`: the science. The base class of what users train, with every hook as a documented stub.

Owns what a module can ask of its trainer (logging, optimizers, the backward pass in manual mode). It runs no loop. A
stub that is not overridden is never called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from bolide.core.errors import MisconfigurationException, NotBuiltError, UserCodeError
from bolide.core.hooks import stub
from bolide.core.messages import warn_once
from bolide.data.hooks import DataHooks
from bolide.hparams import HyperparametersMixin

if TYPE_CHECKING:
    from typing_extensions import Self

    from bolide.callbacks.callback import Callback
    from bolide.engine.optimizers import LightningOptimizer
    from bolide.engine.run import Run
    from bolide.loggers.logger import Logger
    from bolide.trainer.trainer import Trainer


class LightningModule(HyperparametersMixin, DataHooks, nn.Module):
    """What is trained: a network, its loss, its optimizers.

    Define at least `training_step` and `configure_optimizers`, and call `super().__init__()` first in `__init__`.

    Example::

        class Regressor(LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(8, 1)

            def training_step(self, batch, batch_idx):
                x, y = batch
                loss = torch.nn.functional.mse_loss(self.net(x), y)
                self.log("train_loss", loss)
                return loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-3)
    """

    CHECKPOINT_HYPER_PARAMS_KEY: ClassVar[str] = "hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME: ClassVar[str] = "hparams_name"
    CHECKPOINT_HYPER_PARAMS_TYPE: ClassVar[str] = "hparams_type"

    __jit_unused_properties__: ClassVar[list[str]] = [
        "example_input_array", "on_gpu", "current_epoch", "global_step", "global_rank", "local_rank", "logger",
        "loggers", "automatic_optimization", "trainer", "fabric", "strict_loading", "device_mesh", "hparams",
        "hparams_initial", "device", "dtype",
    ]  # fmt: skip

    _trainer: weakref.ReferenceType[Trainer] | None = None
    _run: Run | None = None
    _log_hyperparams: bool = False
    _hparams_name: str | None = None
    prepare_data_per_node: bool = True
    allow_zero_length_dataloader_with_multiple_devices: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._automatic_optimization = True
        self._example_input_array: Any = None
        self._strict_loading: bool | None = None
        self._param_requires_grad_state: dict[nn.Parameter, bool] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError as error:
            if "_parameters" not in self.__dict__:
                raise missing_super_init(self) from error
            raise

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """As of `torch.nn.Module`."""
        if "_buffers" not in self.__dict__:
            raise missing_super_init(self)
        super().register_buffer(*args, **kwargs)

    # ------------------------------------------------------------------ the connection to a run

    def _attach(self, trainer: Trainer, run: Run) -> None:
        self._trainer = weakref.ref(trainer)
        self.__dict__["_run"] = run
        if "_compiled_forward" in self.__dict__:
            self.__dict__["forward"] = self.__dict__["_compiled_forward"]

    def _detach(self) -> None:
        self.__dict__["_run"] = None
        if self.__dict__.pop("_compiled_forward", None) is not None:
            self.__dict__.pop("forward", None)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if state.pop("_compiled_forward", None) is not None:
            state.pop("forward", None)  # it computes with the weights of this object, not of the copy
        state.pop("_trainer", None)  # a copy belongs to no trainer
        state.pop("_run", None)
        return state

    @property
    def trainer(self) -> Trainer:
        """The trainer that runs this module, or ran it last.

        Raises:
            RuntimeError: no trainer was ever given this module, or it is gone.
        """
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            raise RuntimeError(
                f"{type(self).__name__} is not attached to a Trainer: that is so within trainer.fit, validate, test "
                "and predict, and afterwards for as long as the trainer exists"
            )
        return trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        self._trainer = None if trainer is None else weakref.ref(trainer)

    def _trainer_or_none(self) -> Trainer | None:
        return self._trainer() if self._trainer is not None else None

    @property
    def fabric(self) -> None:
        """There is no Fabric; `Trainer.steps` serves loops of one's own."""
        return None

    # ------------------------------------------------------------------ logging

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Logs a metric to the loggers, the bar and `trainer.callback_metrics`. Never waits for the device.

        Args:
            name: the metric's name.
            value: a number, a 1-element tensor, or a torchmetrics Metric.
            prog_bar: whether the bar shows it.
            logger: whether the loggers get it (they do by default).
            on_step: whether each value is logged; by default in training.
            on_epoch: whether the epoch's reduction is logged; by default in validation and testing.
            reduce_fx: "mean" (weighted by batch size), "sum", "min" or "max".
            enable_graph: keeps the value's graph.
            sync_dist: reduces over processes.
            sync_dist_group: None: metrics are reduced over all processes; a group is an error.
            add_dataloader_idx: whether a suffix tells several loaders apart.
            batch_size: the weight of this value; read off the batch where it is not given.
            metric_attribute: accepted; a metric object needs no attribute here.
            rank_zero_only: logs on the first process only.

        Raises:
            MisconfigurationException: not allowed in this hook, or a value that is no number.
            NotBuiltError: a group of processes.
        """
        run = self._run
        if run is None:
            warn_once(f"self.log({name!r}) was called on a module without a running Trainer; nothing is logged.")
            return
        if sync_dist_group is not None:
            raise NotBuiltError(
                f"self.log({name!r}, sync_dist_group=...) is not built in this version of Bolide: metrics are reduced "
                "over all processes. Write sync_dist=True, or reduce the value over the group first"
            )
        if rank_zero_only and run.strategy.global_rank:
            return
        if run.log.barebones:
            warn_once(f"self.log({name!r}) is ignored under Trainer(barebones=True).")
            return
        run.log.add(
            name, value, batch_size,
            (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, add_dataloader_idx, sync_dist,
             rank_zero_only),
        )  # fmt: skip

    def log_dict(self, dictionary: Mapping[str, Any], **options: Any) -> None:
        """Logs each entry of a dictionary, or of a torchmetrics MetricCollection, with the options of `log`."""
        for name, value in dictionary.items():
            self.log(name, value, **options)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints on the first process, above the bar where there is one."""
        trainer = self._trainer_or_none()
        if trainer is None:
            print(*args, **kwargs)
        else:
            trainer.print(*args, **kwargs)

    @property
    def logger(self) -> Logger | None:
        """The first logger of the trainer."""
        trainer = self._trainer_or_none()
        return trainer.logger if trainer is not None else None

    @property
    def loggers(self) -> list[Logger]:
        """All loggers of the trainer."""
        trainer = self._trainer_or_none()
        return trainer.loggers if trainer is not None else []

    # ------------------------------------------------------------------ where it stands

    @property
    def current_epoch(self) -> int:
        """The running epoch, from 0."""
        trainer = self._trainer_or_none()
        return trainer.current_epoch if trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps done."""
        trainer = self._trainer_or_none()
        return trainer.global_step if trainer is not None else 0

    @property
    def global_rank(self) -> int:
        """This process's number."""
        trainer = self._trainer_or_none()
        return trainer.global_rank if trainer is not None else 0

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        trainer = self._trainer_or_none()
        return trainer.local_rank if trainer is not None else 0

    @property
    def device(self) -> torch.device:
        """The device of the parameters; of the trainer where there are none."""
        for tensor in (*self.parameters(), *self.buffers()):
            return tensor.device
        trainer = self._trainer_or_none()
        return trainer.strategy.root_device if trainer is not None else torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the floating-point parameters."""
        for parameter in self.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
        return torch.get_default_dtype()

    @property
    def on_gpu(self) -> bool:
        """Whether the module is on a CUDA device."""
        return self.device.type == "cuda"

    @property
    def device_mesh(self) -> Any:
        """The mesh of processes that the strategy splits a model over; None where there is none."""
        trainer = self._trainer_or_none()
        return getattr(trainer.strategy, "device_mesh", None) if trainer is not None else None

    @property
    def example_input_array(self) -> Any:
        """An input of `forward`, for the summary's shapes and the loggers' graph."""
        return self._example_input_array

    @example_input_array.setter
    def example_input_array(self, example: Any) -> None:
        self._example_input_array = example

    @property
    def automatic_optimization(self) -> bool:
        """Whether the engine runs the backward pass and the step; set it to False to do so in `training_step`."""
        return self._automatic_optimization

    @automatic_optimization.setter
    def automatic_optimization(self, automatic: bool) -> None:
        self._automatic_optimization = automatic

    @property
    def strict_loading(self) -> bool:
        """Whether loaded weights must match by name."""
        return True if self._strict_loading is None else self._strict_loading

    @strict_loading.setter
    def strict_loading(self, strict: bool) -> None:
        self._strict_loading = strict

    # ------------------------------------------------------------------ optimizers

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or the list of them, for manual optimization.

        Args:
            use_pl_optimizer: as LightningOptimizer, whose steps are counted and have their hooks; else as they are.
        """
        run = self._running("optimizers")
        found: list[Any] = list(run.proxies if use_pl_optimizer else run.optimizers)
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """The scheduler, the list of them, or None."""
        found = [config.scheduler for config in self._running("lr_schedulers").schedulers]
        if not found:
            return None
        return found[0] if len(found) == 1 else found

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass of manual optimization, with its hooks and the loss scaler.

        Args:
            loss: a scalar tensor with gradient.
            args, kwargs: handed to `loss.backward`.

        Raises:
            MisconfigurationException: in automatic optimization.
        """
        run = self._running("manual_backward")
        if self.automatic_optimization:
            raise MisconfigurationException(
                "manual_backward is for manual optimization: set self.automatic_optimization = False in __init__"
            )
        hooks, backward = run.plan.hooks, run.plan.backward
        for hook in hooks.on_before_backward:
            hook(loss)
        if backward is None or ((args or kwargs) and not run.strategy.distributed):
            scaler = run.precision.scaler
            (loss if scaler is None else scaler.scale(loss)).backward(*args, **kwargs)
        else:
            backward(loss, *args, **kwargs)
        for hook in hooks.on_after_backward:
            hook()

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Only the parameters of `optimizer` need gradients from now on, until `untoggle_optimizer`."""
        mine = {p for group in optimizer.param_groups for p in group["params"]}
        before: dict[nn.Parameter, bool] = {}
        for other in self._running("toggle_optimizer").optimizers:
            for group in other.param_groups:
                for parameter in group["params"]:
                    before.setdefault(parameter, parameter.requires_grad)
        for parameter in before:
            parameter.requires_grad = parameter in mine and before[parameter]
        self._param_requires_grad_state = before

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Puts back what `toggle_optimizer` changed."""
        for parameter, requires_grad in self._param_requires_grad_state.items():
            parameter.requires_grad = requires_grad
        self._param_requires_grad_state = {}

    @contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """`toggle_optimizer` for as long as this is open."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    @stub
    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips the gradients of `optimizer`, by the Trainer's settings where none are given.

        Args:
            optimizer: whose gradients.
            gradient_clip_val: the limit; nothing is clipped at None or 0.
            gradient_clip_algorithm: "norm" (the total norm) or "value" (each element).
        """
        run = self._running("clip_gradients")
        given = {"gradient_clip_val": gradient_clip_val, "gradient_clip_algorithm": gradient_clip_algorithm}
        for name, own in given.items():
            asked = getattr(run.trainer, name)
            if own is not None and asked is not None and own != asked:
                raise MisconfigurationException(
                    f"clip_gradients({name}={own!r}) contradicts Trainer({name}={asked!r}); leave one of them out"
                )
        value = gradient_clip_val if gradient_clip_val is not None else run.trainer.gradient_clip_val
        kind = gradient_clip_algorithm or run.trainer.gradient_clip_algorithm or "norm"
        if kind not in ("norm", "value"):
            raise MisconfigurationException(f"gradient_clip_algorithm={kind!r} must be 'norm' or 'value'")
        if value:
            run.strategy.clip(optimizer, float(value), kind)

    def _running(self, method: str) -> Run:
        if self._run is None:
            raise RuntimeError(f"self.{method}() works while a Trainer runs this module only")
        return self._run

    # ------------------------------------------------------------------ hooks: what runs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network: what `self(batch)` computes."""
        return super().forward(*args, **kwargs)

    @stub
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch: a scalar tensor, a dictionary with "loss", or None to leave the batch out.

        Takes `(batch, batch_idx)`, or `(batch)`, or `(dataloader_iter)` to draw batches itself.
        """

    @stub
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """One validation batch: `(batch, batch_idx, dataloader_idx=0)`. What it returns goes to the batch-end hooks."""

    @stub
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """One test batch: `(batch, batch_idx, dataloader_idx=0)`."""

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """The prediction of a batch: `(batch, batch_idx, dataloader_idx=0)`; `self(batch)` by default."""
        return self(kwargs.get("batch", args[0] if args else None))

    @stub
    def configure_optimizers(self) -> Any:
        """The optimizers and schedulers.

        Returns:
            An optimizer; a list of them; `([optimizers], [schedulers])`; `{"optimizer": ..., "lr_scheduler": ...,
            "monitor": ...}`; a list of such dictionaries; or None. A scheduler may be a dictionary with the keys
            scheduler, interval ("epoch" or "step"), frequency, monitor, strict and name.
        """

    @stub
    def configure_callbacks(self) -> Sequence[Callback] | Callback:
        """Callbacks that belong to this module; they replace those of the trainer of the same type."""
        return []

    @stub
    def configure_model(self) -> None:
        """Makes the layers on the device and in the precision of the run; may be called more than once."""

    @stub
    def configure_sharded_model(self) -> None:
        """The old name of `configure_model`."""

    @stub
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips before a step; override to do it another way."""
        self.clip_gradients(
            optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm
        )

    @stub
    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """One optimizer step: evaluates the closure (forward and backward), then steps."""
        optimizer.step(closure=optimizer_closure)

    @stub
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Clears the gradients, after the forward pass of a window's first batch."""
        optimizer.zero_grad()

    @stub
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass."""
        loss.backward(*args, **kwargs)

    @stub
    def lr_scheduler_step(self, scheduler: Any, metric: Any | None) -> None:
        """Steps a scheduler; override for one that is not torch's kind."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    # ------------------------------------------------------------------ hooks: what happens

    @stub
    def on_fit_start(self) -> None:
        """Fit begins: the module is on its device, the optimizers are there."""

    @stub
    def on_fit_end(self) -> None:
        """Fit ends."""

    @stub
    def on_train_start(self) -> None:
        """Training begins."""

    @stub
    def on_train_end(self) -> None:
        """Training ends."""

    @stub
    def on_train_epoch_start(self) -> None:
        """A training epoch begins."""

    @stub
    def on_train_epoch_end(self) -> None:
        """A training epoch ends."""

    @stub
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; return -1 to leave out the rest of the epoch."""
        return None

    @stub
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A training batch ends; `outputs` is what `training_step` returned, detached."""

    @stub
    def on_validation_start(self) -> None:
        """Validation begins."""

    @stub
    def on_validation_end(self) -> None:
        """Validation ends."""

    @stub
    def on_validation_epoch_start(self) -> None:
        """The validation epoch begins."""

    @stub
    def on_validation_epoch_end(self) -> None:
        """The validation epoch ends; the last moment to log."""

    @stub
    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch begins."""

    @stub
    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch ends."""

    @stub
    def on_validation_model_zero_grad(self) -> None:
        """Frees the gradients before validation within a fit."""
        self.zero_grad()

    @stub
    def on_validation_model_eval(self) -> None:
        """Brings the module to eval mode for validation."""
        self.eval()

    @stub
    def on_validation_model_train(self) -> None:
        """Brings the module back after validation; by default each part gets the mode that it had."""
        self.train()

    @stub
    def on_test_start(self) -> None:
        """Testing begins."""

    @stub
    def on_test_end(self) -> None:
        """Testing ends."""

    @stub
    def on_test_epoch_start(self) -> None:
        """The test epoch begins."""

    @stub
    def on_test_epoch_end(self) -> None:
        """The test epoch ends; the last moment to log."""

    @stub
    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch begins."""

    @stub
    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch ends."""

    @stub
    def on_test_model_eval(self) -> None:
        """Brings the module to eval mode for testing."""
        self.eval()

    @stub
    def on_test_model_train(self) -> None:
        """Brings the module back after testing; by default each part gets the mode that it had."""
        self.train()

    @stub
    def on_predict_start(self) -> None:
        """Prediction begins."""

    @stub
    def on_predict_end(self) -> None:
        """Prediction ends."""

    @stub
    def on_predict_epoch_start(self) -> None:
        """The prediction epoch begins."""

    @stub
    def on_predict_epoch_end(self) -> None:
        """The prediction epoch ends."""

    @stub
    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A prediction batch begins."""

    @stub
    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A prediction batch ends."""

    @stub
    def on_predict_model_eval(self) -> None:
        """Brings the module to eval mode for prediction."""
        self.eval()

    @stub
    def on_predict_model_train(self) -> None:
        """Brings the module back after prediction; by default each part gets the mode that it had."""
        self.train()

    @stub
    def on_before_zero_grad(self, optimizer: Any) -> None:
        """The gradients are about to be cleared."""

    @stub
    def on_before_backward(self, loss: Tensor) -> None:
        """The backward pass of `loss` is about to run."""

    @stub
    def on_after_backward(self) -> None:
        """The backward pass is done; the gradients are not clipped yet."""

    @stub
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """The optimizer is about to step; the gradients are not clipped yet."""

    @stub
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written; what is added must be tensors or plain data."""

    @stub
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint was read; nothing of it is in place yet."""

    # ------------------------------------------------------------------ the rest

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The tensors of `data` (any nesting) of all processes, stacked in a new first dimension; all must call it.

        On one process, as they are.

        Args:
            data: tensors, numbers, or collections of them, of the same shapes on all processes.
            group: the processes that take part; all by default.
            sync_grads: whether gradients flow back to the processes that the tensors came from.
        """
        from bolide.collectives import all_gather

        return all_gather(data, group, sync_grads)

    def freeze(self) -> Self:
        """Takes all parameters out of training, and brings the module to eval mode."""
        for parameter in self.parameters():
            parameter.requires_grad = False
        self.eval()
        return self

    def unfreeze(self) -> Self:
        """Puts all parameters into training, and brings the module to train mode."""
        for parameter in self.parameters():
            parameter.requires_grad = True
        self.train()
        return self

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """A module with the hyperparameters and the weights of a checkpoint.

        Args:
            checkpoint_path: a file or URL.
            map_location: where the tensors go, as in `torch.load`.
            hparams_file: a .yaml or .csv file whose values replace those of the checkpoint.
            strict: whether the weights' names must match.
            weights_only: accepted as None or True; Bolide never unpickles code.
            kwargs: constructor arguments, which replace the saved ones.

        Raises:
            CheckpointError: the file cannot be read, or does not fit.
        """
        refuse_unpickling(weights_only, "load_from_checkpoint")
        from bolide.checkpoint.modules import load_module

        return load_module(cls, checkpoint_path, map_location, hparams_file, strict, **kwargs)

    def to_torchscript(self, *args: Any, **kwargs: Any) -> Any:
        """Not built in this version."""
        raise NotBuiltError(
            "to_torchscript is not built in this version of Bolide; write torch.export.export(module.eval(), "
            "(example,))"
        )

    def to_onnx(self, *args: Any, **kwargs: Any) -> Any:
        """Not built in this version."""
        raise NotBuiltError(
            "to_onnx is not built in this version of Bolide; write torch.onnx.export(module.eval(), (example,), path, "
            "dynamo=True)"
        )

    def to_tensorrt(self, *args: Any, **kwargs: Any) -> Any:
        """Not built in this version."""
        raise NotBuiltError(
            "to_tensorrt is not built in this version of Bolide; use torch_tensorrt.compile on the module"
        )


def missing_super_init(module: Any) -> UserCodeError:
    """The error for an `__init__` that forgot to call its base's."""
    return UserCodeError(
        f"{type(module).__name__}.__init__ does not call super().__init__(): write it as the first line of __init__, "
        "before any layer or parameter is assigned"
    )


def refuse_unpickling(weights_only: bool | None, where: str) -> None:
    """Refuses `weights_only=False`.

    Raises:
        NotBuiltError: it was asked for.
    """
    if weights_only is False:
        raise NotBuiltError(
            f"{where}(weights_only=False) would run code from the file, which Bolide never does; leave it out. A file "
            "that needs it must be saved again with plain hyperparameters."
        )
