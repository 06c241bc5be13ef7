"""What the second door does because other processes train with this one. Nothing here runs where there is one process.

Owns the split of loaders, the weight of each batch in a step of all ranks, and the agreement of ranks on what callbacks
ask for. Gradients are exchanged by DDP, checkpoints are written and read by the engine. Who calls: the trainer's parts,
the adapter, and the accelerator that scripts see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from bolide import collectives
from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.protocols import Optimizable
from bolide.data.loaders import length_of, set_epoch
from bolide.data.samplers import Part, RankBatches, RankTurns, drawn_alike, sharer_of, splits
from bolide.data.samplers import over_ranks as split_loaders
from bolide.engine.ranks import digest
from bolide.launch.detect import detect
from bolide.launch.group import open_group
from bolide.strategies.ddp import DDPStrategy
from bolide.strategies.parallel import ParallelStrategy
from bolide.transformers import loss as losses
from bolide.transformers.data import Window, Windows
from bolide.transformers.evaluation import batch_size_of
from bolide.world import resolve_world

T = TypeVar("T")
WISHES = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
"""What callbacks ask for; where one rank asks, all do it."""


# ---------------------------------------------------------------------- the group and the strategy


class RankStrategy(DDPStrategy):
    """DDP, as the second door uses it: an evaluation in the midst of training leaves the wrapped model as it is."""

    def start(self, exact: bool = False) -> None:
        """As of DDP; sums are taken in the order of the ranks, as every run can go on with the same bits."""
        super().start(exact=True)

    def prepare(self, module: nn.Module, build_optimizers: Any) -> list[Optimizable]:
        """As of DDP; for an evaluation of the model that trains there is nothing to prepare."""
        if build_optimizers is None and self._ddp is not None and module is self.module:
            return self.optimizers
        return super().prepare(module, build_optimizers)


def open_ranks(args: Any) -> None:
    """Opens the group of all processes, once.

    Raises:
        ConfigError: the launcher's processes do not fit this machine.
    """
    environment = detect()
    world, wrong = resolve_world(args.device.type, "auto", launcher=environment)
    if wrong:
        raise ConfigError(wrong)
    open_group(world, environment, backend_of(args), args.ddp_timeout_delta)


def backend_of(args: Any) -> str | None:
    """The backend as torch is told it; with NCCL, gloo stands beside it for what lies in CPU memory."""
    return None if args.ddp_backend == "nccl" else args.ddp_backend


def strategy_for(args: Any, model: nn.Module) -> ParallelStrategy:
    """FSDP or DeepSpeed where it was asked for, else DDP, with the settings of the arguments.

    Unused parameters are looked for as transformers does.
    """
    if args.fsdp:
        from bolide.transformers import sharding  # torch's FSDP takes its time to import

        if sharding.is_on(args):
            return sharding.strategy_for(args, model, backend_of(args))
    if args.deepspeed:
        from bolide.transformers import zero

        return zero.strategy_for(args, model, backend_of(args))
    unused = args.ddp_find_unused_parameters
    if unused is None:
        unused = hasattr(type(model), "is_gradient_checkpointing") and not args.checkpoints_activations
    given = {
        "bucket_cap_mb": args.ddp_bucket_cap_mb, "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": args.ddp_static_graph,
    }  # fmt: skip
    return RankStrategy(
        process_group_backend=backend_of(args),
        timeout=args.ddp_timeout_delta,
        find_unused_parameters=bool(unused),
        **{name: value for name, value in given.items() if value is not None},
    )


def engine_settings(args: Any, model: nn.Module) -> dict[str, Any]:
    """What the engine is told of devices; loaders are split here, not by it."""
    if args.world_size == 1:
        return {"devices": 1}
    return {"devices": "auto", "strategy": strategy_for(args, model), "use_distributed_sampler": False}


def refused(args: Any) -> Iterator[str]:
    """Settings that several processes do not have."""
    if args.world_size == 1:
        return
    if args.auto_find_batch_size:
        yield (
            "auto_find_batch_size=True with several processes: one that lacks memory leaves the others waiting; write "
            "a per_device_train_batch_size that fits"
        )
    environment = detect()
    here = environment.local_world_size() if environment is not None else None
    if args.save_on_each_node and here not in (None, args.world_size):
        yield (
            "save_on_each_node=True is not built for several machines; write save_on_each_node=False and an output_dir "
            "that all of them see"
        )


# ---------------------------------------------------------------------- agreements


def agree(owner: Any, where: str) -> None:
    """What callbacks of one rank ask for, all ranks do."""
    control = owner.control
    rows = collectives.gather_numbers(where, [float(bool(getattr(control, name))) for name in WISHES])
    for i, name in enumerate(WISHES):
        if any(row[i] for row in rows):
            setattr(control, name, True)


def of_first(args: Any, value: T) -> T:
    """The first rank's value, on all: figures that hold a clock's time differ."""
    return collectives.broadcast(value) if args.world_size > 1 else value


def summed(owner: Any, number: float) -> float:
    """The sum of a number over all ranks."""
    if not owner._several:
        return number
    return sum(row[0] for row in collectives.gather_numbers("a sum over the processes", [float(number)]))


# ---------------------------------------------------------------------- loaders


def size_here(args: Any, batch_size: int) -> int:
    """Samples of this rank's batch: with split_batches the size that was asked for is that of all ranks.

    Raises:
        ConfigError: it does not divide.
    """
    if args.world_size == 1 or not args.accelerator_config.split_batches:
        return batch_size
    if batch_size % args.world_size:
        raise ConfigError(
            f"accelerator_config={{'split_batches': True}}: a batch of {batch_size} cannot be split evenly over "
            f"{args.world_size} processes; write a per-device batch size that divides by {args.world_size}"
        )
    return int(batch_size // args.world_size)


class Running:
    """The share of the evaluation's batch that runs now: 0 where it only keeps this rank with the others."""

    share: float | None = None


running = Running()


class Noted:
    """Mixed into a split loader: while its batches are read, `running.share` is that of the last one."""

    def __iter__(self) -> Iterator[Any]:
        return noted(self, super().__iter__())  # type: ignore[misc]


def noted(loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches."""
    outer = running.share
    try:
        for number, batch in enumerate(batches):
            running.share = share_of(loader, number)
            yield batch
    finally:
        running.share = outer


class Turns:
    """Every W-th batch of a loader that has no index, such as a stream: each rank reads all, and takes its own.

    Or, where batches are `sent`, the first rank alone reads.

    Where the last round is short, a rank without a batch is given the first one's, with a share of nothing.
    """

    def __init__(self, loader: Any, part: Part, sent: bool = False) -> None:
        self.loader, self.part, self.sent = loader, part, sent
        self.shares: dict[int, float] = {}
        self.dataset = getattr(loader, "dataset", None)

    def set_epoch(self, epoch: int) -> None:
        """Tells the loader which epoch begins."""
        set_epoch(self.loader, epoch)

    def __iter__(self) -> Iterator[Any]:
        return noted(self, self._mine())

    def _mine(self) -> Iterator[Any]:
        part = self.part
        self.shares = shares = {}
        batches = iter(self.loader) if part.rank == 0 or not self.sent else iter(())
        number = 0
        while turn := self._turn(batches):
            if number == 0 and not self.sent:
                check_alike(self.loader, turn[0])
            if part.rank >= len(turn):
                shares[number] = 0.0
            yield turn[part.rank if part.rank < len(turn) else 0]
            number += 1

    def _turn(self, batches: Iterator[Any]) -> list[Any]:
        turn = list(islice(batches, self.part.size))
        return collectives.broadcast(plain(turn)) if self.sent else turn


class SizedTurns(Turns):
    """Turns of a loader of known length."""

    def __len__(self) -> int:
        return -(-len(self.loader) // self.part.size)


def check_alike(loader: Any, batch: Any) -> None:
    """Refuses a stream that gives other batches on other ranks: samples would be read twice, or never.

    Raises:
        UserCodeError: the first batches differ.
    """
    rows = collectives.gather_numbers("the first batch of a stream", [digest(batch)])
    if any(row != rows[0] for row in rows):
        what = type(getattr(loader, "dataset", loader)).__name__
        raise UserCodeError(
            f"{what} gives other batches on other processes. The Trainer deals the batches of a stream out in turn, so "
            "it must give the same ones everywhere: do not split it by rank, and shuffle it by a seed that all "
            "processes have"
        )


def over_ranks(loader: Any, args: Any, training: bool) -> Any:
    """The loader reading this rank's part; as it is, where it does so already or there is one process.

    In training a global batch is as many batches as there are ranks. In an evaluation the ranks take the batches in
    turn, so that each batch is the one that a single process has.

    Raises:
        ConfigError: an evaluation with torch's DistributedSampler, which counts samples twice.
    """
    if args.world_size == 1 or isinstance(loader, (Turns, Noted)):
        return loader
    part = Part(args.process_index, args.world_size, True)
    if args.accelerator_config.dispatch_batches and not _is_split(loader):
        return (SizedTurns if _sized(loader) else Turns)(loader, part, sent=True)
    if not isinstance(loader, DataLoader) or (not splits(loader) and not _is_split(loader)):
        return (SizedTurns if _sized(loader) else Turns)(loader, part)
    if not splits(loader):
        if not training and _has_torch_sampler(loader):
            raise ConfigError(
                "An evaluation with torch's DistributedSampler counts the samples twice that it fills up with; leave "
                "the sampler out: the Trainer splits the loader itself"
            )
        return loader if training else in_turns(loader, part)
    if training:
        return split_loaders(loader, part)
    return in_turns(loader, part)


def in_turns(loader: Any, part: Part) -> Any:
    """A DataLoader of which this rank reads every W-th batch; a short last round is filled up with a share of 0."""
    kind = type(type(loader).__name__, (Noted, type(loader)), {})
    clone: Any = object.__new__(kind)  # a shallow copy
    clone.__dict__.update(loader.__dict__)
    entries: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if isinstance(entries, RankBatches):  # a training loader, split as such
        entries = BatchSampler(entries.sampler, entries.batch_size, entries.drop_last)
    elif isinstance(entries, RankTurns):
        entries = entries.sampler
    inner = getattr(entries, "sampler", entries)
    draw = iter if isinstance(inner, SequentialSampler) else drawn_alike(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    # a DataLoader refuses that these are set after construction
    object.__setattr__(clone, name, RankTurns(entries, part, draw))
    object.__setattr__(clone, "_iterator", None)
    return clone


def _samplers(loader: Any) -> tuple[Any, ...]:
    batches = getattr(loader, "batch_sampler", None)
    return (getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))


def _is_split(loader: Any) -> bool:
    return any(isinstance(one, (DistributedSampler, RankBatches, RankTurns)) for one in _samplers(loader))


def _has_torch_sampler(loader: Any) -> bool:
    return any(isinstance(one, DistributedSampler) for one in _samplers(loader))


def _sized(loader: Any) -> bool:
    return not math.isinf(length_of(loader))


def share_of(loader: Any, number: int) -> float:
    """The share of a batch of the running pass, by its number."""
    sharer = loader if getattr(loader, "shares", None) is not None else sharer_of(loader)
    return 1.0 if sharer is None else float(sharer.shares.get(number, 1.0))


class RankWindows(Windows):
    """Windows that know the share of each of their batches; the engine weighs nothing, as the trainer does.

    It is its own sampler, to be told of epochs.
    """

    def _grouped(self, batches: Iterator[Any]) -> Iterator[Window]:
        window, shares = Window(), []
        for batch in batches:
            window.append(batch)
            shares.append(share_of(self.loader, self.reader.taken - 1))
            if len(window) == self.size:
                window.shares = shares
                yield window
                window, shares = Window(), []
        if window:
            window.shares = shares
            yield window

    def set_epoch(self, epoch: int) -> None:
        """Tells the loader which epoch begins."""
        if isinstance(self.loader, Turns):
            self.loader.set_epoch(epoch)
        else:
            set_epoch(self.loader, epoch)

    @property
    def sampler(self) -> Any:
        """What is told of epochs."""
        return self

    @property
    def batch_sampler(self) -> Any:
        """None: the batches' own is not the engine's matter."""
        return None


class SizedRankWindows(RankWindows):
    """RankWindows over a loader of known length."""

    def __len__(self) -> int:
        return -(-len(self.loader) // self.size)


def windows(loader: Any, size: int) -> RankWindows:
    """The windows of a split loader, of one batch each, too."""
    return RankWindows(loader, size) if math.isinf(length_of(loader)) else SizedRankWindows(loader, size)


# ---------------------------------------------------------------------- one step of all ranks


class SharedStep:
    """What the trainer keeps of a step that several processes share.

    Attributes:
        _several: whether there are several processes.
        _weighed: whether the running batch's loss has its weight in the step already.
        _backwards: backward passes by the accelerator in the step.
        _batch_share: of the running batch among those of all processes, by samples; 0 where it is there to fill up.
        _batch_shares: those of all batches of the step.
        _loss_scale: what a loss is multiplied by that was divided by the labels of the step.
        _loss_scales: those of all batches of the step.
        _kind_of_weights: by what batches are weighed, as all processes have said.
    """

    _several = False
    _weighed = False
    _backwards = 0
    _batch_share = 1.0
    _batch_shares: Any = None
    _loss_scale: Any = 1.0
    _loss_scales: Any = None
    _kind_of_weights: float | None = None


def weigh(owner: Any, window: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The batches of this rank in a step, and the labels in those of all ranks; sets what each loss weighs.

    DDP averages over ranks, so a loss weighs its part of the whole step times the number of ranks.
    """
    args = owner.args
    shares = getattr(window, "shares", None) or [1.0] * len(window)
    count: Any = None
    if owner._own_samples:
        window, count = losses.call(owner.get_batch_samples, iter(window), len(window), args.device)
    weights, total, scale = weights_of(owner, window, shares)
    owner._batch_shares = shares
    owner._loss_weights = weights
    owner._loss_scales = [scale if share else 0.0 for share in shares]
    if not owner._passes_count:
        return window, count
    count = total if count is None else count
    if owner._uses_count is None:
        if args.torch_compile:  # a compiled model is believed
            owner._uses_count = True
        elif isinstance(count, Tensor):
            count = losses.CountProbe.of(count)
    return window, count


def weights_of(owner: Any, window: Sequence[Any], shares: Sequence[float]) -> tuple[list[Any], Tensor | None, Any]:
    """What each batch's mean loss weighs, the labels that count in the step, and what a sum over them is scaled by.

    By labels where all batches have them, else by samples, else alike.

    Raises:
        UserCodeError: batches have labels on some ranks and none on others.
    """
    args = owner.args
    ranks = args.world_size
    counts: list[Any] = [losses.labels_in(batch, owner._shifts_labels) for batch in window]
    kind = 2.0
    if any(count is None for count in counts):
        counts = [batch_size_of(batch) for batch in window]
        kind = 1.0
        if any(count is None for count in counts):
            counts, kind = [1 for _ in window], 0.0
        counts = [torch.tensor(float(count)) for count in counts]
    if owner._kind_of_weights != kind:  # asked once, and again where it changes on all ranks
        rows = collectives.gather_numbers("the first step", [kind])
        if any(row != rows[0] for row in rows):
            raise UserCodeError(
                "Batches have labels on some processes and none on others, so a step cannot be weighed: let the data "
                "collator give the same names everywhere"
            )
        owner._kind_of_weights = kind
    counts = [count if share else count * 0 for count, share in zip(counts, shares, strict=True)]
    mine = torch.stack(counts).sum()
    by_labels = kind == 2.0
    if by_labels and not args.average_tokens_across_devices:
        active = collectives.reduce((mine > 0).to(torch.float32), "sum").clamp(min=1)
        scale: Any = ranks / active
        return [count / mine.clamp(min=1) * scale for count in counts], mine, scale
    total = collectives.reduce(mine, "sum")
    return [count * ranks / total.clamp(min=1) for count in counts], total if by_labels else None, float(ranks)


def before_backward(owner: Any, strategy: Any) -> None:
    """A backward pass begins: where the trainer did not weigh the loss itself, the engine does, by samples."""
    owner._backwards += 1
    strategy.share = 1.0 if owner._weighed else owner._batch_share


def check_backward(owner: Any) -> None:
    """Refuses a training_step that went back by itself: its gradients would stay this rank's own.

    Raises:
        UserCodeError: always, where no backward pass of the window was the accelerator's.
    """
    if not owner._backwards:
        raise UserCodeError(
            "training_step did not call self.accelerator.backward(loss), so the gradients of the processes were not "
            "exchanged; write that in the place of loss.backward()"
        )


# ---------------------------------------------------------------------- values of all ranks


def plain(value: Any) -> Any:
    """A nested value with its tensors in CPU memory, each with no more memory than it needs."""

    def one(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        item = item.detach().cpu()
        return item.clone() if item.untyped_storage().nbytes() > item.numel() * item.element_size() else item

    return tree_map(one, value)


def in_order(value: T) -> list[T]:
    """The value of each rank whose batch counts, in the order of the batches; the same on all ranks."""
    share = running.share
    rows = collectives.gather_objects((share != 0.0, plain(value) if share != 0.0 else None))
    return [item for counts, item in rows if counts]  # type: ignore[misc]


def gather(value: Any, everything: bool = True) -> Any:
    """Tensors of all ranks, joined along their first dimension; without `everything`, of batches that count."""
    mine = everything or running.share != 0.0
    shapes = collectives.gather_objects((mine, [tuple(leaf.shape) for leaf in tree_leaves(value) if _is(leaf)]))
    if all(row == shapes[0] for row in shapes) and mine:
        stacked = collectives.all_gather(value)
        return tree_map(lambda item: item.flatten(0, 1) if _is(item) and item.dim() > 1 else item, stacked)
    rows = collectives.gather_objects(plain(value) if mine else None)
    parts = [row for (counts, _), row in zip(shapes, rows, strict=True) if counts]
    return tree_map(lambda own, *items: _joined(own, items), value, *parts)


def _is(item: Any) -> bool:
    return isinstance(item, Tensor)


def _joined(own: Any, items: Sequence[Any]) -> Any:
    if not _is(own):
        return own
    if any(item.shape[1:] != items[0].shape[1:] for item in items):
        raise UserCodeError(
            f"gather: tensors of the shapes {', '.join(str(tuple(item.shape)) for item in items)} cannot be joined; "
            "call accelerator.pad_across_processes(tensor, dim=1) first"
        )
    return torch.cat([item.reshape(1) if item.dim() == 0 else item for item in items]).to(own.device)


def padded(value: Any, dim: int, pad_index: int, pad_first: bool) -> Any:
    """Tensors filled up along `dim` to the longest of all ranks."""

    def one(item: Any) -> Any:
        if not _is(item) or dim >= item.dim():
            return item
        longest = max(int(row[0]) for row in collectives.gather_numbers("pad_across_processes", [item.shape[dim]]))
        if longest == item.shape[dim]:
            return item
        shape = list(item.shape)
        shape[dim] = longest
        whole = item.new_full(shape, pad_index)
        whole.narrow(dim, longest - item.shape[dim] if pad_first else 0, item.shape[dim]).copy_(item)
        return whole

    return tree_map(one, value)
