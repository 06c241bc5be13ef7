"""`self.log`: what was logged, where it is kept, what it reduces to, and who is told.

A slot is made and checked at the first call of a (hook, name); after that a call is a lookup and an append. Nothing
here reads a number back from a device except `to_numbers`, which the engine calls when a logger or a bar is due, once
for all values. Reading never folds: a slot folds at every 64th value, counted, so no clock moves a float.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from bolide.core.errors import MisconfigurationException
from bolide.core.hooks import HOOKS, HookSpec
from bolide.core.messages import PossibleUserWarning, warn_once
from bolide.core.protocols import LoggerProtocol

FOLD_AT = 64
"""A slot holds at most this many values before it folds them into its sum."""

SAVE_EVERY_S = 2.0
"""Within an epoch, loggers are asked to write out what they buffer no more often than this."""

REDUCTIONS: dict[Any, str] = {
    "mean": "mean", "avg": "mean", "sum": "sum", "min": "min", "max": "max",
    torch.mean: "mean", torch.sum: "sum", torch.min: "min", torch.max: "max", min: "min", max: "max", sum: "sum",
}  # fmt: skip

PUBLISHED = ("callback_metrics", "logged_metrics", "progress_bar_metrics")

Options = tuple[Any, ...]


def is_torchmetric(value: Any) -> bool:
    """Whether `value` is a torchmetrics Metric; torchmetrics is not imported to find out."""
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(value, torchmetrics.Metric)


class Slot:
    """One metric of one hook: its last value, and what its epoch value is made of.

    `values` (0-dim tensors or numbers) and `weights` (batch sizes) wait to be folded into `total` and `weight`.
    """

    __slots__ = (
        "name", "options", "step_name", "epoch_name", "on_step", "on_epoch", "prog_bar", "logger", "reduction",
        "enable_graph", "last", "values", "weights", "total", "weight", "metric", "synced", "agreed",
    )  # fmt: skip

    def __init__(self, name: str, options: Options, on_step: bool, on_epoch: bool, suffix: str) -> None:
        self.prog_bar, logger, _, _, reduce_fx, self.enable_graph = options[:6]
        self.logger = logger is not False
        self.options = options
        forked = on_step and on_epoch
        self.name = name + suffix
        self.step_name = f"{name}_step{suffix}" if forked else self.name
        self.epoch_name = f"{name}_epoch{suffix}" if forked else self.name
        self.on_step, self.on_epoch = on_step, on_epoch
        self.reduction = REDUCTIONS[reduce_fx]
        self.metric: Any = None
        self.synced = bool(options[7]) if len(options) > 7 else False
        self.reset()

    def reset(self) -> None:
        """Forgets all values."""
        self.last: Any = None
        self.values: list[Any] = []
        self.weights: list[int] = []
        self.total: Tensor | None = None
        self.weight = 0
        self.agreed: Tensor | None = None

    def fold(self) -> None:
        """Reduces what waits into `total` and `weight`."""
        self.total, self.weight = self._reduced()
        self.values, self.weights = [], []

    def _reduced(self) -> tuple[Tensor | None, int]:
        if not self.values:
            return self.total, self.weight
        stacked = torch.stack([as_metric_tensor(v) for v in self.values])
        if self.reduction == "mean":
            if any(w != 1 for w in self.weights):
                stacked = stacked * torch.tensor(self.weights, dtype=stacked.dtype, device=stacked.device)
            part = stacked.sum()
        else:
            part = stacked.sum() if self.reduction == "sum" else _extreme(self.reduction, stacked)
        if self.total is None:
            return part, self.weight + sum(self.weights)
        if self.reduction in ("mean", "sum"):
            return self.total + part, self.weight + sum(self.weights)
        return _extreme(self.reduction, torch.stack([self.total, part])), self.weight + sum(self.weights)

    def step_value(self) -> Tensor | None:
        """The last value, or None where there is none: nothing logged yet, or not logged by step."""
        if not self.on_step or self.last is None:
            return None
        return as_metric_tensor(self.last)

    def epoch_value(self) -> Tensor | None:
        """What the epoch's values reduce to so far, or None where nothing was logged."""
        if not self.on_epoch or self.last is None:
            return None
        if self.agreed is not None:
            return self.agreed
        if self.metric is not None:
            return as_metric_tensor(self.metric.compute())
        total, weight = self._reduced()
        if total is None:
            return None
        return total / weight if self.reduction == "mean" else total


def _extreme(reduction: str, values: Tensor) -> Tensor:
    return values.min() if reduction == "min" else values.max()


def as_metric_tensor(value: Any) -> Tensor:
    """A 0-dim tensor of at least single precision from a number or a 1-element tensor."""
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=torch.get_default_dtype())
    if value.dim():
        value = value.reshape(())
    if not value.is_floating_point():
        return value.to(torch.get_default_dtype())
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


Slots = dict[tuple[HookSpec | None, str], Slot]


class Collection:
    """The slots of one loop (training, validation or testing).

    `loaders` holds a dictionary for each loader. `shared` holds what belongs to none: what is logged at the start and
    the end of an evaluation over several loaders. With one loader they are the same dictionary.
    """

    def __init__(self, training: bool) -> None:
        self.training = training
        self.shared: Slots = {}
        self.loaders: list[Slots] = [self.shared]

    def all_slots(self) -> Iterator[Slot]:
        """All slots, loader by loader, in the order of their first call, then what belongs to none."""
        for loader in self.loaders:
            yield from loader.values()
        if len(self.loaders) > 1:
            yield from self.shared.values()

    def open(self, loaders: int) -> None:
        """Starts anew for `loaders` loaders; the slots of as many loaders as before are kept, emptied."""
        self.reset()
        if max(loaders, 1) != len(self.loaders):
            self.shared = {}
            self.loaders = [{} for _ in range(loaders)] if loaders > 1 else [self.shared]

    def reset(self) -> None:
        """Empties all slots; torchmetrics are reset with them."""
        for slot in self.all_slots():
            if slot.metric is not None and slot.last is not None:
                slot.metric.reset()
            slot.reset()


class Log:
    """All that a run logs. One is made for each fit, validate, test or predict."""

    def __init__(
        self, loggers: Iterable[LoggerProtocol] = (), barebones: bool = False, save_every_s: float = SAVE_EVERY_S
    ) -> None:
        self.loggers = list(loggers)
        self.save_every_s = save_every_s
        self.barebones = barebones
        self.scope: HookSpec | None = None
        self.batch: Any = None
        self.batch_size: int | None = None
        self.in_batch = False
        self.unpublished = False
        self.collections = {"train": Collection(True), "validate": Collection(False), "test": Collection(False)}
        self.active: Collection = self.collections["train"]
        self.slots: Slots = self.active.shared
        self.loader_idx: int | None = None
        self.callback_metrics: dict[str, Tensor] = {}
        self.logged_metrics: dict[str, Tensor] = {}
        self.progress_bar_metrics: dict[str, Tensor] = {}
        self.epoch = 0
        self.journal: list[Slot] | None = None
        self.over_ranks: Callable[[], None] | None = None
        """Reduces step values over ranks, where there are several, before they go to the loggers."""
        self._saved_at_s = time.monotonic()

    # ------------------------------------------------------------------ what the user calls

    def add(self, name: str, value: Any, batch_size: int | None, options: Options) -> None:
        """Keeps `value`. `options` are (prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, ...).

        Does not sync: `value` is detached and kept where it is.
        """
        slot = self.slots.get((self.scope, name))
        if slot is None or slot.options != options:
            slot = self._slot(name, value, options, slot)
        if slot.metric is not None:
            self._add_metric(slot, value)
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise _bad_value(name, value)
            # a tensor without history may be a running buffer that goes on changing: keep what it is now
            if not slot.enable_graph:
                value = value.detach() if value.requires_grad else value.clone()
        elif not isinstance(value, Number) and not hasattr(value, "__float__"):
            raise _bad_value(name, value)
        slot.last = value
        if slot.on_epoch:
            slot.values.append(value)
            slot.weights.append(self._weight(batch_size) if slot.reduction == "mean" else 1)
            if self.journal is not None:
                self.journal.append(slot)
            elif len(slot.values) >= FOLD_AT:
                slot.fold()

    def _add_metric(self, slot: Slot, value: Any) -> None:
        if not is_torchmetric(value):
            raise MisconfigurationException(
                f"self.log({slot.name!r}) was given a torchmetrics Metric before and {type(value).__name__} now; "
                "log the metric object itself each time"
            )
        slot.metric = value
        computed = getattr(value, "_forward_cache", None)
        slot.last = computed.detach().clone() if isinstance(computed, Tensor) else math.nan
        if slot.on_step and computed is None:
            slot.last = value.compute().detach()

    def _weight(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return batch_size
        if self.batch_size is None:
            self.batch_size = batch_size_of(self.batch) if self.batch is not None else 1
        return self.batch_size

    def _slot(self, name: str, value: Any, options: Options, existing: Slot | None) -> Slot:
        """Checks a call that was not made before in this hook, and makes its slot."""
        scope = self.scope
        if scope is None or scope.log is None:
            where = f"in `{scope.name}`" if scope is not None else "outside the hooks of a running Trainer"
            raise MisconfigurationException(
                f"self.log({name!r}) cannot be called {where}. Call it in training_step, validation_step, test_step, "
                "or in their epoch and batch hooks."
            )
        if existing is not None and existing.options == ():  # restored from a checkpoint: this call is its own
            existing.options = options
            existing.synced = bool(options[7]) if len(options) > 7 else False
            existing.metric = value if is_torchmetric(value) else None
            return existing
        if existing is not None:
            raise MisconfigurationException(
                f"self.log({name!r}) was called twice in `{scope.name}` with different options; use one set of options "
                "for a name, or log under two names"
            )
        if isinstance(name, str) and "/dataloader_idx_" in name:
            raise MisconfigurationException(
                f"self.log({name!r}): '/dataloader_idx_' is put there for several loaders; leave it out of the name"
            )
        if not isinstance(name, str):
            raise MisconfigurationException(f"self.log's name must be a string, not {name!r}")
        _, _, on_step, on_epoch, reduce_fx, _, add_idx = options[:7]
        rule = scope.log
        on_step = rule.on_step if on_step is None else bool(on_step)
        on_epoch = rule.on_epoch if on_epoch is None else bool(on_epoch)
        if rule.fixed and (on_step or not on_epoch):
            raise MisconfigurationException(
                f"self.log({name!r}) in `{scope.name}` is per epoch: leave on_step and on_epoch out there"
            )
        if not on_step and not on_epoch:
            raise MisconfigurationException(
                f"self.log({name!r}, on_step=False, on_epoch=False) would log nothing; set one of them to True"
            )
        if not _hashable(reduce_fx) or reduce_fx not in REDUCTIONS:
            raise MisconfigurationException(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): only mean, sum, min and max are there; for another "
                "reduction log a torchmetrics Metric"
            )
        suffix = f"/dataloader_idx_{self.loader_idx}" if self.loader_idx is not None and add_idx else ""
        if self.loader_idx is not None and not suffix:
            self._check_clash(name)
        slot = Slot(name, options, on_step, on_epoch, suffix)
        if is_torchmetric(value):
            slot.metric = value
        elif isinstance(value, Tensor) and value.numel() == 1 and not value.is_floating_point():
            warn_once(
                f"self.log({name!r}) was given a tensor of {value.dtype}; it is converted to floating point. "
                "Write .float() to say so."
            )
        self.slots[(scope, name)] = slot
        return slot

    def _check_clash(self, name: str) -> None:
        """Refuses one name for several loaders: their values would mix."""
        for i, loader in enumerate(self.active.loaders):
            if i != self.loader_idx and any(slot.name == name for slot in loader.values()):
                raise MisconfigurationException(
                    f"self.log({name!r}, add_dataloader_idx=False) is called for several loaders with one name, so "
                    "their values would mix; write a name that holds the loader, for example "
                    f"f'{name}/{{dataloader_idx}}'"
                )

    # ------------------------------------------------------------------ what the engine calls

    def open_batch(self, batch: Any) -> None:
        """A batch begins: its size is found when first needed."""
        self.batch = batch
        self.batch_size = None
        self.in_batch = True

    def close_batch(self) -> None:
        """The batch and its hooks are over; its values are published when they are next asked for."""
        if self.batch is not None:
            self.batch = None
            self.unpublished = True
            if self.journal is not None:  # of a batch that does not count
                self.rewind()
                self.close_journal()

    def enter(self, loop: str, loaders: int = 1) -> tuple[Collection, bool, bool]:
        """Makes `loop` the one that is logged to, emptied; returns what `leave` puts back."""
        self.publish()
        before = (self.active, self.in_batch, self.unpublished)
        self.active = self.collections[loop]
        self.active.open(loaders)
        self.in_batch = False
        self.select_loader(None)
        return before

    def leave(self, before: tuple[Collection, bool, bool]) -> None:
        """Goes back to the loop that was logged to before; the values of this one are forgotten."""
        self.active.reset()
        self.active, self.in_batch, self.unpublished = before
        self.select_loader(None)

    def select_loader(self, index: int | None) -> None:
        """What is logged and read from now on belongs to loader `index`, or (None) to no single one."""
        several = index is not None and len(self.active.loaders) > 1
        self.loader_idx = index if several else None
        self.slots = self.active.loaders[index or 0] if several else self.active.shared

    def close_epoch_values(self) -> None:
        """From here on reads give epoch values: the batches of the epoch are over."""
        self.publish()
        self.in_batch = False

    def open_journal(self) -> None:
        """A closure begins that may be evaluated several times."""
        self.journal = []

    def rewind(self) -> None:
        """The closure is evaluated again: what its last evaluation logged no longer counts."""
        for slot in self.journal or ():
            slot.values.pop()
            slot.weights.pop()
        self.journal = []

    def close_journal(self) -> None:
        """The closure is done; its last evaluation counts."""
        self.journal = None
        for slot in self.slots.values():
            if len(slot.values) >= FOLD_AT:
                slot.fold()

    def current(self) -> dict[str, Tensor]:
        """What there is to tell a logger now: step values within a batch, epoch values after."""
        if self.over_ranks is not None and self.in_batch and self.active.training:
            self.over_ranks()
        return self._current(self.slots.values(), only_logger=True)

    def current_of_all(self) -> dict[str, Tensor]:
        """As `current`, of all loaders of the active loop together."""
        return self._current(self.active.all_slots(), only_logger=True)

    def by_loader(self) -> list[dict[str, Tensor]]:
        """The epoch values of each loader of the active loop; what belongs to none of them is in all."""
        collection = self.active
        shared = self._current(collection.shared.values(), only_logger=False)
        if len(collection.loaders) == 1:
            return [shared]
        return [{**self._current(loader.values(), only_logger=False), **shared} for loader in collection.loaders]

    def _current(self, slots: Iterable[Slot], only_logger: bool) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for slot in slots:
            if only_logger and not slot.logger:
                continue
            value = slot.step_value() if self.in_batch else slot.epoch_value()
            if value is not None:
                found[slot.step_name if self.in_batch else slot.epoch_name] = value
        return found

    def publish(self) -> None:
        """Brings `callback_metrics`, `logged_metrics` and `progress_bar_metrics` up to date."""
        if self.in_batch and self.batch is None:
            if not self.unpublished:
                return  # published once: what another loop published since is newer
            self.unpublished = False
        for slot in self.slots.values():
            value = slot.step_value() if self.in_batch else slot.epoch_value()
            if value is None:
                continue
            value = value if slot.enable_graph else value.detach()
            name = slot.step_name if self.in_batch else slot.epoch_name
            if slot.logger:
                self.logged_metrics[name] = value
            if self.active.training or not self.in_batch:
                self.callback_metrics[slot.name] = value
                self.callback_metrics[name] = value
            if slot.prog_bar:
                self.progress_bar_metrics[name] = value

    def clear(self) -> None:
        """Forgets every value that was published or kept."""
        for collection in self.collections.values():
            collection.reset()
        self.callback_metrics.clear()
        self.logged_metrics.clear()
        self.progress_bar_metrics.clear()

    def to_cpu(self) -> None:
        """Moves what was published off the device, when a run ends."""
        for metrics in (self.callback_metrics, self.logged_metrics, self.progress_bar_metrics):
            for name, value in metrics.items():
                metrics[name] = value.detach().cpu()

    # ------------------------------------------------------------------ saving and going on

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """What was logged and is not reduced yet, what is published, and the metric objects of `module`."""
        return {
            "slots": [
                {
                    "hook": scope.name if scope is not None else None,
                    "name": name,
                    "suffix": slot.name.removeprefix(name),
                    "on_step": slot.on_step,
                    "on_epoch": slot.on_epoch,
                    "prog_bar": slot.prog_bar,
                    "logger": slot.logger,
                    "reduction": slot.reduction,
                    "enable_graph": slot.enable_graph,
                    "last": _detached(slot.last),
                    "values": [_detached(value) for value in slot.values],
                    "weights": list(slot.weights),
                    "total": slot.total,
                    "weight": slot.weight,
                    "metric": path_of(slot.metric, module),
                }
                for (scope, name), slot in self.collections["train"].shared.items()
            ],
            "published": {
                kind: {name: value.detach() for name, value in getattr(self, kind).items()} for kind in PUBLISHED
            },
            "metrics": metric_states(module),
            "in_batch": self.in_batch,
            "unpublished": self.unpublished,
        }

    def load_state_dict(self, state: dict[str, Any], module: nn.Module) -> None:
        """Takes back what `state_dict` gave; the first call of each `self.log` then adopts its slot."""
        slots = self.collections["train"].shared
        slots.clear()
        parts = dict(module.named_modules())
        for saved in state["slots"]:
            options: Options = (
                saved["prog_bar"],
                saved["logger"],
                None,
                None,
                saved["reduction"],
                saved["enable_graph"],
            )
            slot = Slot(saved["name"], options, saved["on_step"], saved["on_epoch"], saved["suffix"])
            slot.options = ()
            slot.last, slot.values, slot.weights = saved["last"], list(saved["values"]), list(saved["weights"])
            slot.total, slot.weight = saved["total"], saved["weight"]
            slot.metric = parts.get(saved["metric"]) if saved["metric"] is not None else None
            slots[(HOOKS.get(saved["hook"] or ""), saved["name"])] = slot
        for kind in PUBLISHED:
            getattr(self, kind).update(state["published"][kind])
        load_metric_states(module, state["metrics"])
        self.in_batch, self.unpublished = state["in_batch"], state["unpublished"]

    def names(self) -> list[str]:
        """All names that were logged so far."""
        found: dict[str, None] = {}
        for collection in self.collections.values():
            for slot in collection.all_slots():
                found |= dict.fromkeys((slot.name, slot.step_name, slot.epoch_name))
        return list(found | dict.fromkeys(self.callback_metrics))

    def write(self, metrics: Mapping[str, Any], step: int | None, axis: int, save: bool = False) -> None:
        """Tells the loggers. Reads the numbers back from the device, all at once.

        `step` is an explicit place on the loggers' axis; without it a metric named "step" gives it, else `axis`, and
        the epoch is added.
        """
        if not self.loggers or not metrics:
            return
        numbers = to_numbers(metrics)
        if step is None:
            own = numbers.pop("step", None)
            step = None if own is None else int(own)
        if step is None:
            numbers.setdefault("epoch", self.epoch)
            step = axis
        now_s = time.monotonic()
        save = save or now_s - self._saved_at_s > self.save_every_s
        for logger in self.loggers:
            logger.log_metrics(metrics=dict(numbers), step=step)
            if save:
                logger.save()
        if save:
            self._saved_at_s = now_s

    def save(self) -> None:
        """Asks the loggers to write out what they buffer."""
        for logger in self.loggers:
            logger.save()
        self._saved_at_s = time.monotonic()


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def path_of(metric: Any, module: nn.Module) -> str | None:
    """Where in `module` a metric object is, or None."""
    if metric is None:
        return None
    return next((path for path, part in module.named_modules() if part is metric), None)


def metric_states(module: nn.Module) -> dict[str, Any]:
    """What each torchmetrics Metric within `module` has accumulated, by its path."""
    return {
        path: {
            "updates": metric._update_count,
            "values": {name: _copied(getattr(metric, name)) for name in metric._defaults},
        }
        for path, metric in module.named_modules()
        if is_torchmetric(metric)
    }


def load_metric_states(module: nn.Module, states: dict[str, Any]) -> None:
    """Gives the metric objects of `module` back what they had accumulated."""
    for path, metric in module.named_modules():
        if path in states and is_torchmetric(metric):
            saved: Any = metric
            saved._update_count = states[path]["updates"]
            saved._computed = None
            for name, value in states[path]["values"].items():
                setattr(saved, name, _copied(value))


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [_copied(item) for item in value] if isinstance(value, list) else value


def to_numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Plain numbers from 0-dim tensors, with one transfer a device; what is no tensor stays as it is."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    numbers: dict[str, Any] = {}
    if len(tensors) == 1:
        ((name, value),) = tensors.items()
        numbers[name] = value.item()
    elif tensors:
        kinds = {(value.device, value.dtype) for value in tensors.values()}
        if len(kinds) == 1:
            read = torch.stack([value.detach().reshape(()) for value in tensors.values()]).tolist()
        else:
            read = [value.item() for value in tensors.values()]
        numbers = dict(zip(tensors, read, strict=True))
    return {name: numbers.get(name, value) for name, value in metrics.items()}


def batch_size_of(batch: Any) -> int:
    """The number of samples of a batch: the first dimension of the first tensor in it.

    Raises:
        MisconfigurationException: there is no tensor in the batch.
    """
    sizes = _sizes(batch)
    first = next(sizes, None)
    if first is None:
        raise MisconfigurationException(
            "The batch holds no tensor to tell its size from; write self.log(..., batch_size=...)"
        )
    if any(size != first for size in sizes):
        warn_once(
            f"The batch holds tensors of different first dimensions; {first}, that of the first, is taken as the "
            "number of samples. Write self.log(..., batch_size=...) to say it.",
            PossibleUserWarning,
        )
    return first


def _sizes(item: Any) -> Iterator[int]:
    if isinstance(item, Tensor):
        yield item.size(0) if item.dim() else 1
    elif isinstance(item, Mapping):
        for value in item.values():
            yield from _sizes(value)
    elif isinstance(item, (list, tuple)):
        for value in item:
            yield from _sizes(value)
    elif hasattr(item, "__dataclass_fields__"):
        for name in item.__dataclass_fields__:
            yield from _sizes(getattr(item, name))


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _bad_value(name: str, value: Any) -> MisconfigurationException:
    if isinstance(value, Mapping):
        hint = "use self.log_dict for a dictionary of numbers"
    elif isinstance(value, Tensor):
        hint = f"its shape is {tuple(value.shape)}; log one element or a reduction, such as value.mean()"
    else:
        hint = "log a number, a 1-element tensor, or a torchmetrics Metric"
    return MisconfigurationException(f"self.log({name!r}) was given a {type(value).__name__}: {hint}")
