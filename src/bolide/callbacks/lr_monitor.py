"""LearningRateMonitor: logs learning rates, and momentum and weight decay where asked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import torch

from bolide.callbacks.callback import Callback
from bolide.core.errors import ConfigError
from bolide.core.hooks import internal
from bolide.core.messages import warn

if TYPE_CHECKING:
    from bolide.trainer.trainer import Trainer


class LearningRateMonitor(Callback):
    """Logs the rate of every parameter group to the loggers.

    A rate is named `lr-SGD`, the second optimizer of that class `lr-SGD-1`, groups `lr-SGD/pg1`, `lr-SGD/pg2` or by
    the group's "name". A scheduler's dictionary may name it otherwise with its "name".

    Args:
        logging_interval: "step" at the batches that are logged, "epoch" at each epoch's start; None: as each
            scheduler's interval says.
        log_momentum: logs the momentum, or the first beta, as `<name>-momentum`.
        log_weight_decay: logs the weight decay as `<name>-weight_decay`.
        log_key_prefix: put in front of each name that is logged.

    Attributes:
        lrs: all logged rates by name.
        last_momentum_values: the last logged momentum by name, None where it is not logged.
        last_weight_decay_values: the same for weight decay.

    Example::

        Trainer(callbacks=[LearningRateMonitor(logging_interval="step")]).fit(model)
    """

    def __init__(
        self,
        logging_interval: Literal["step", "epoch"] | None = None,
        log_momentum: bool = False,
        log_weight_decay: bool = False,
        log_key_prefix: str | None = None,
    ) -> None:
        super().__init__()
        if logging_interval not in (None, "step", "epoch"):
            raise ConfigError(
                f"LearningRateMonitor(logging_interval={logging_interval!r}) must be 'step', 'epoch' or None"
            )
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self.log_key_prefix = log_key_prefix or ""
        self.lrs: dict[str, list[float]] = {}
        self.last_momentum_values: dict[str, float | None] = {}
        self.last_weight_decay_values: dict[str, float | None] = {}
        self._by_step = logging_interval != "epoch"
        self._rows: list[tuple[Any, list[str], str | None]] = []  # optimizer, a name a group, its scheduler's interval

    def on_train_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Names the rates.

        Raises:
            ConfigError: there is no logger, or two groups of an optimizer have one name.
        """
        if not trainer.loggers:
            raise ConfigError("LearningRateMonitor needs a logger: give the Trainer one, or remove the callback")
        if self.log_momentum:
            for optimizer in trainer.optimizers:
                if not {"momentum", "betas"} & set(optimizer.defaults):
                    kind = type(optimizer).__name__
                    warn(f"LearningRateMonitor(log_momentum=True): {kind} has no momentum; 0 is logged")
        self._rows = []
        self.lrs, self.last_momentum_values, self.last_weight_decay_values = {}, {}, {}
        self._name_rates(trainer)

    @internal
    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Logs by step, at the batches whose metrics are logged."""
        if not self._by_step:
            return
        every = trainer.log_every_n_steps
        step = trainer.progress.stepped_batches
        if every and ((step + 1) % every == 0 or trainer.should_stop):
            self._log(trainer, "step", step)

    def on_train_epoch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Logs by epoch. Groups that were added since get their names."""
        if sum(len(names) for _, names, _ in self._rows) != sum(len(o.param_groups) for o, _, _ in self._rows):
            self._name_rates(trainer)
        if self.logging_interval != "step":
            self._log(trainer, "epoch", trainer.progress.stepped_batches)

    def _log(self, trainer: Trainer, interval: str, step: int) -> None:
        stats = self._extract_stats(trainer, interval if self.logging_interval is None else "any")
        if not stats:
            return
        for logger in trainer.loggers:
            logger.log_metrics(dict(stats), step=step)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in stats.items()})

    def _extract_stats(self, trainer: Trainer, interval: str) -> dict[str, float]:
        """What is to be logged for schedulers of `interval` ("any": all), and for optimizers without one."""
        stats: dict[str, float] = {}
        for optimizer, names, own in self._rows:
            if interval in ("any", own) or own is None:
                stats |= self._get_optimizer_stats(optimizer, names)
        return stats

    def _get_optimizer_stats(self, optimizer: Any, names: list[str]) -> dict[str, float]:
        stats: dict[str, float] = {}
        prefix = self.log_key_prefix
        for group, name in zip(optimizer.param_groups, names, strict=True):
            rate = _number(group["lr"])
            self.lrs[name].append(rate)
            stats[prefix + name] = rate
            if self.log_momentum:
                momentum = _number(group["betas"][0] if "betas" in group else group.get("momentum", 0))
                self.last_momentum_values[f"{name}-momentum"] = momentum
                stats[f"{prefix}{name}-momentum"] = momentum
            if self.log_weight_decay:
                decay = _number(group.get("weight_decay", 0))
                self.last_weight_decay_values[f"{name}-weight_decay"] = decay
                stats[f"{prefix}{name}-weight_decay"] = decay
        return stats

    def _name_rates(self, trainer: Trainer) -> None:
        """Names all rates anew; what was kept under a name that a group has lost moves to the group's new one."""
        known = [names for _, names, _ in self._rows]
        self._rows = named_rates(trainer.lr_scheduler_configs, trainer.optimizers)
        for i, (_, names, _) in enumerate(self._rows):
            for j, name in enumerate(names):
                old = known[i][j] if i < len(known) and j < len(known[i]) else name
                self.lrs[name] = self.lrs.pop(old, [])
                for values, kind in (
                    (self.last_momentum_values, "momentum"),
                    (self.last_weight_decay_values, "weight_decay"),
                ):
                    values[f"{name}-{kind}"] = values.pop(f"{old}-{kind}", None)


def named_rates(configs: list[Any], optimizers: list[Any]) -> list[tuple[Any, list[str], str | None]]:
    """Each optimizer that a scheduler moves, then those that none does: with a name a group and the interval.

    Raises:
        ConfigError: two groups of one optimizer have the same "name".
    """
    count: Counter[type] = Counter()
    rows: list[tuple[Any, list[str], str | None]] = []
    for config in configs:
        optimizer = config.scheduler.optimizer
        rows.append((optimizer, _group_names(optimizer, config.name or _class_name(optimizer, count)), config.interval))
    seen = [id(optimizer) for optimizer, _, _ in rows]
    for optimizer in optimizers:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # a proxy of manual optimization
        if id(optimizer) not in seen and all("lr" in group for group in optimizer.param_groups):
            rows.append((optimizer, _group_names(optimizer, _class_name(optimizer, count)), None))
    return rows


def _class_name(optimizer: Any, count: Counter[type]) -> str:
    kind = type(optimizer)
    number, count[kind] = count[kind], count[kind] + 1
    return f"lr-{kind.__name__}-{number}" if number else f"lr-{kind.__name__}"


def _group_names(optimizer: Any, name: str) -> list[str]:
    groups = optimizer.param_groups
    own = [group["name"] for group in groups if "name" in group]
    twice = sorted({given for given in own if own.count(given) > 1})
    if twice:
        raise ConfigError(
            f"LearningRateMonitor: {type(optimizer).__name__} has several parameter groups named {twice[0]!r}; give "
            "each group a name of its own, or none"
        )
    if len(groups) == 1 and not own:
        return [name]
    return [f"{name}/{group.get('name', f'pg{i}')}" for i, group in enumerate(groups, 1)]


def _number(value: Any) -> float:
    return value.item() if isinstance(value, torch.Tensor) else value


__all__ = ["LearningRateMonitor"]
