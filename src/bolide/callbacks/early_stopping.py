"""EarlyStopping: ends a fit when a metric no longer improves, leaves its bounds, or is not finite."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from bolide.callbacks.callback import Callback
from bolide.callbacks.monitored import at_train_epoch_end, missing_metric, validates
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.messages import info, warn

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class EarlyStoppingReason(Enum):
    """Why a fit was ended."""

    NOT_STOPPED = 0
    STOPPING_THRESHOLD = 1
    DIVERGENCE_THRESHOLD = 2
    PATIENCE_EXHAUSTED = 3
    NON_FINITE_METRIC = 4


class EarlyStopping(Callback):
    """Ends the fit when `monitor` has not improved in `patience` checks.

    Args:
        monitor: the logged metric.
        min_delta: by how much it must change to count as better.
        patience: how many checks in a row without an improvement end the fit.
        verbose: says so at each improvement, and when the metric is missing and `strict` is off.
        mode: "min" or "max": which value is better.
        strict: whether a metric that nobody logs is an error.
        check_finite: ends the fit when the metric is NaN or infinite.
        stopping_threshold: ends the fit when the metric is better than this.
        divergence_threshold: ends the fit when the metric is worse than this.
        check_on_train_epoch_end: checks at the end of the training epoch (True) or of validation (False); default: of
            validation where it does not run exactly once an epoch.
        log_rank_zero_only: says why the fit ended on the first process only.

    Attributes:
        wait_count: checks since the last improvement.
        stopped_epoch: the epoch in which it ended the fit, else 0.
        best_score: the best value so far, 0-dim.
        stopping_reason: an EarlyStoppingReason.
        stopping_reason_message: the same in words, or None.

    Example::

        Trainer(callbacks=[EarlyStopping("val_loss", patience=5)]).fit(model)
    """

    monitors_metrics: ClassVar[bool] = True
    mode_dict: ClassVar[dict[str, Callable[..., Tensor]]] = {"min": torch.lt, "max": torch.gt}
    order_dict: ClassVar[dict[str, str]] = {"min": "<", "max": ">"}

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        log_rank_zero_only: bool = False,
    ) -> None:
        super().__init__()
        if mode not in self.mode_dict:
            raise ConfigError(f"EarlyStopping: mode={mode!r} must be 'min' or 'max'")
        self.monitor = monitor
        self.min_delta = min_delta * (1 if mode == "max" else -1)
        self.patience = patience
        self.verbose = verbose
        self.mode = mode
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.log_rank_zero_only = log_rank_zero_only
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self._validated = False  # validation has run since training began
        self.start_anew()

    def start_anew(self) -> None:
        """Nothing is the best so far, and nothing has been waited for."""
        self.wait_count = 0
        self.stopped_epoch = 0
        self.stopping_reason = EarlyStoppingReason.NOT_STOPPED
        self.stopping_reason_message: str | None = None
        self.best_score = torch.tensor(torch.inf if self.mode == "min" else -torch.inf)

    @property
    def state_key(self) -> str:
        """The settings that tell early stopping callbacks apart."""
        return self._generate_state_key(monitor=self.monitor, mode=self.mode)

    @property
    def monitor_op(self) -> Callable[..., Tensor]:
        """torch.lt or torch.gt: whether the first value is better than the second."""
        return self.mode_dict[self.mode]

    def state_dict(self) -> dict[str, Any]:
        """How long it has waited, and for what."""
        return {
            "wait_count": self.wait_count,
            "stopped_epoch": self.stopped_epoch,
            "best_score": self.best_score,
            "patience": self.patience,
            "stopping_reason": self.stopping_reason.value,
            "stopping_reason_message": self.stopping_reason_message,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on waiting where the saved run was."""
        self.wait_count = state_dict["wait_count"]
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.best_score = state_dict["best_score"]
        self.patience = state_dict["patience"]
        self.stopping_reason = EarlyStoppingReason(state_dict.get("stopping_reason", 0))
        self.stopping_reason_message = state_dict.get("stopping_reason_message")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No validation has run yet."""
        self._validated = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks here, where the end of the training epoch is the moment."""
        if at_train_epoch_end(trainer, self._check_on_train_epoch_end) and not self._should_skip_check(trainer):
            self._run_early_stopping_check(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks here, where the end of validation is the moment."""
        if self._should_skip_check(trainer):
            return
        self._validated = True
        if not at_train_epoch_end(trainer, self._check_on_train_epoch_end):
            self._run_early_stopping_check(trainer)

    def _should_skip_check(self, trainer: Trainer) -> bool:
        """Whether this is no moment to check: no fit, or the sanity check."""
        return bool(trainer.state.fn != "fit" or trainer.sanity_checking)

    def _run_early_stopping_check(self, trainer: Trainer) -> None:
        """Looks at the metric and ends the fit if it must; all processes decide alike."""
        metrics = trainer.callback_metrics
        if trainer.fast_dev_run or not self._validate_condition_metric(trainer, metrics):
            return
        stops, reason = self._evaluate_stopping_criteria(metrics[self.monitor].squeeze())
        stops = bool(trainer.strategy.reduce_boolean_decision(stops, all=False))
        if reason and self.verbose and not stops:
            self._log_info(trainer, reason)
        if not stops:
            return
        self.stopped_epoch = trainer.current_epoch
        self._log_info(trainer, reason or f"Another process ended the fit because of {self.monitor}.")
        trainer.request_stop(reason or self.monitor)

    def _validate_condition_metric(self, trainer: Trainer, logs: dict[str, Tensor]) -> bool:
        """Whether the metric is there. It may still come with a validation that has not run yet."""
        if logs.get(self.monitor) is not None:
            return True
        if not self._validated and validates(trainer):
            return False
        if self.strict:
            raise UserCodeError(missing_metric(trainer, self))
        if self.verbose:
            warn(missing_metric(trainer, self))
        return False

    def _evaluate_stopping_criteria(self, current: Tensor) -> tuple[bool, str | None]:
        """Whether to stop, and what there is to say about `current` (0-dim)."""
        is_better, sign = self.monitor_op, self.order_dict[self.mode]
        best = self.best_score.to(current.device)
        value, name = float(current), self.monitor
        if self.check_finite and not torch.isfinite(current):
            return self._stop(
                EarlyStoppingReason.NON_FINITE_METRIC, f"{name} = {value} is not finite; its best was {float(best):.3f}"
            )
        if self.stopping_threshold is not None and is_better(current, self.stopping_threshold):
            return self._stop(
                EarlyStoppingReason.STOPPING_THRESHOLD,
                f"{name} = {value} {sign} {self.stopping_threshold}, the stopping threshold",
            )
        if self.divergence_threshold is not None and is_better(-current, -self.divergence_threshold):
            return self._stop(
                EarlyStoppingReason.DIVERGENCE_THRESHOLD,
                f"{name} = {value} is beyond {self.divergence_threshold}, the divergence threshold",
            )
        if is_better(current - self.min_delta, best):
            text = self._improvement_message(current)
            self.best_score, self.wait_count = current, 0
            return False, text
        self.wait_count += 1
        if self.wait_count < self.patience:
            return False, None
        checks = "check" if self.wait_count == 1 else f"{self.wait_count} checks"
        return self._stop(
            EarlyStoppingReason.PATIENCE_EXHAUSTED,
            f"{name} has not improved in the last {checks}; its best was {float(best):.3f}",
        )

    def _stop(self, reason: EarlyStoppingReason, why: str) -> tuple[bool, str]:
        self.stopping_reason = reason
        self.stopping_reason_message = f"Early stopping: {why}."
        return True, self.stopping_reason_message

    def _improvement_message(self, current: Tensor) -> str:
        """How `current` compares with the best value so far."""
        if torch.isfinite(self.best_score):
            change = abs(float(self.best_score) - float(current))
            return f"{self.monitor} improved by {change:.3f} to {float(current):.3f}, its best so far."
        return f"{self.monitor} = {float(current):.3f}, its best so far."

    def _log_info(self, trainer: Trainer, message: str) -> None:
        rank = f"[rank {trainer.global_rank}] " if trainer.world_size > 1 else ""
        if trainer.is_global_zero or not self.log_rank_zero_only:
            info(rank + message)
