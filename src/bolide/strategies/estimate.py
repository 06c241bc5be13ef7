"""How many bytes a training needs on each device, for each strategy and number of devices, before anything is started.

Parameters and gradients are counted; optimizer states and activations are read off one step with tensors that have
shapes and no memory. What a framework, fragmentation and buffers of communication take comes on top. Public as
`bolide.estimate`. Who calls: users, and `bolide estimate`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from bolide.core.errors import ConfigError

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


@dataclass(frozen=True)
class Row:
    """The bytes of one device under one strategy.

    `gathered` are whole parameters, with their gradients, that a sharded strategy holds for a part while it computes.
    `activations` is None where no step could be traced.
    """

    strategy: str
    devices: int
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.gathered + (self.activations or 0)


@dataclass(frozen=True)
class Estimate:
    """The rows, and what was found out about a step. `memory` is what a device has, in bytes, where that is known."""

    rows: tuple[Row, ...]
    memory: int | None
    notes: tuple[str, ...]

    def __str__(self) -> str:
        head = (
            "strategy",
            "devices",
            "parameters",
            "gradients",
            "optimizer",
            "gathered",
            "activations",
            "total",
            "fits",
        )
        lines: list[tuple[str, ...]] = [head]
        for row in self.rows:
            parts = (row.parameters, row.gradients, row.optimizer, row.gathered)
            known = "unknown" if row.activations is None else _text(row.activations)
            fits = "" if self.memory is None else ("yes" if row.total <= self.memory else "no")
            lines.append((row.strategy, str(row.devices), *map(_text, parts), known, _text(row.total), fits))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        limit = [] if self.memory is None else [f"A device has {_text(self.memory)}."]
        return "\n".join(["Bytes on each device:", *table, *limit, *self.notes])


def estimate(
    module: nn.Module, batch: Any = None, devices: Iterable[int] = (1, 2, 4, 8), memory: int | str | None = None
) -> Estimate:
    """The bytes that training `module` takes on each device.

    Args:
        module: a LightningModule; nothing of it is changed.
        batch: one batch of one device, for the activations; without it the example input, else they are unknown.
        devices: the numbers of devices to tell of.
        memory: what a device has, in bytes or as "80GB"; default: what the first GPU has, if there is one.

    Example::

        print(bolide.estimate(module, next(iter(loader)), devices=[1, 4], memory="24GB"))
    """
    counts = list(devices)
    if not counts or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in counts):
        raise ConfigError(f"estimate(devices={devices!r}) must be numbers of at least 1")
    sizes = [(p.numel() * p.element_size(), p.requires_grad) for p in module.parameters()]
    parameters = sum(size for size, _ in sizes)
    gradients = sum(size for size, trained in sizes if trained)
    buffers = sum(b.numel() * b.element_size() for b in module.buffers())
    optimizer, activations, notes = traced_step(module, batch)
    if optimizer is None:
        optimizer = 2 * gradients
        notes = (*notes, "Optimizer states are taken to be Adam's: two numbers a parameter.")
    rows = []
    for n in sorted(set(counts)):
        if n == 1:
            rows.append(Row("single device", 1, parameters + buffers, gradients, optimizer, 0, activations))
            continue
        part = [-(-amount // n) for amount in (parameters, gradients, optimizer)]
        widest = largest_part(module)
        # DDP's buckets are as large as the gradients
        rows.append(Row("ddp", n, parameters + buffers, 2 * gradients, optimizer, 0, activations))
        # ZeRO keeps a second copy of its part of the parameters with the optimizer states
        zero = part[0] + part[2]
        rows.append(Row("deepspeed_stage_1", n, parameters + buffers, gradients, zero, 0, activations))
        rows.append(Row("deepspeed_stage_2", n, parameters + buffers, part[1], zero, 2 * widest, activations))
        rows.append(Row("deepspeed_stage_3", n, part[0] + buffers, part[1], zero, 2 * widest, activations))
        rows.append(Row("fsdp, whole", n, part[0] + buffers, part[1], part[2], 2 * parameters, activations))
        rows.append(Row("fsdp, by layer", n, part[0] + buffers, part[1], part[2], 2 * widest, activations))
    return Estimate(tuple(rows), memory_of(memory), notes)


def largest_part(module: nn.Module) -> int:
    """The bytes of the parameters of the largest part that has some of its own: what FSDP gathers at once by layer."""
    own = [sum(p.numel() * p.element_size() for p in part.parameters(recurse=False)) for part in module.modules()]
    return max(own, default=0)


def traced_step(module: nn.Module, batch: Any) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Bytes of optimizer states and activations of one step, by tensors without memory; None where that fails."""
    example = getattr(module, "example_input_array", None)
    if batch is None and example is not None:
        notes: tuple[str, ...] = ("Activations are those of the example input, not of a batch.",)
    elif batch is None:
        return *_optimizer_alone(module), ("Activations are unknown: give a batch.",)
    else:
        notes = ()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    parameters = {id(p) for p in module.parameters()}
    try:
        with mode:
            twin = copy.deepcopy(module)
            parameters = {p.untyped_storage()._cdata for p in twin.parameters()}
            given = tree_map(
                lambda x: torch.empty_like(x) if isinstance(x, Tensor) else x, example if batch is None else batch
            )
            held: dict[int, int] = {}

            def keep(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage._cdata not in parameters:
                    held[storage._cdata] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = twin(given) if batch is None else _stepped(twin, given)
            loss = output["loss"] if isinstance(output, dict) else output
            if batch is None:
                loss = sum(leaf.float().sum() for leaf in tree_leaves(loss) if isinstance(leaf, Tensor))
            for parameter in twin.parameters():
                parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            optimizer = _state_bytes(twin)
        return optimizer, sum(held.values()), notes
    except Exception as error:  # noqa: BLE001  # a step may do anything; the table says what is not known
        told = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        return *_optimizer_alone(module), (f"Activations are unknown: the step cannot be traced ({told}).",)


def _stepped(module: Any, batch: Any) -> Any:
    import inspect

    takes_index = len(inspect.signature(module.training_step).parameters) > 1
    return module.training_step(batch, 0) if takes_index else module.training_step(batch)


def _optimizer_alone(module: nn.Module) -> tuple[int | None, None]:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            twin = copy.deepcopy(module)
            for parameter in twin.parameters():
                parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            return _state_bytes(twin), None
    except Exception:  # noqa: BLE001  # configure_optimizers may ask for a trainer: the caller says what is assumed
        return None, None


def _state_bytes(module: Any) -> int:
    found: Any = module.configure_optimizers()
    total = 0
    for optimizer in _optimizers_in(found):
        optimizer.step()
        for entry in optimizer.state.values():
            total += sum(v.numel() * v.element_size() for v in entry.values() if isinstance(v, Tensor))
    return total


def _optimizers_in(found: Any) -> Sequence[torch.optim.Optimizer]:
    if isinstance(found, torch.optim.Optimizer):
        return [found]
    if isinstance(found, dict):
        return _optimizers_in(found.get("optimizer"))
    if isinstance(found, (list, tuple)):
        return [one for item in found for one in _optimizers_in(item)]
    return []


def memory_of(given: int | str | None) -> int | None:
    """Bytes from a number, or text such as "80GB"; of the first GPU where nothing is given, None where there is none.

    Raises:
        ConfigError: no amount of memory.
    """
    if given is None:
        return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    text = str(given).strip().lower().replace(" ", "")
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "b"
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError) as error:
        raise ConfigError(f'estimate(memory={given!r}) is no amount of memory; write bytes, or "80GB"') from error


def _text(amount: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if amount >= size:
            return f"{amount / size:.2f} {unit}"
    return f"{amount} B"
