"""What a run does because other ranks run with it: agree on ends, on stops, on lengths, on what the step gave.

Nothing here is called by a run of one process; the plan puts the wrappers in where there are several. What is said in
the backward pass goes by the control word; all else here is a collective of its own, at moments that all ranks reach.
"""

from __future__ import annotations

import signal
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from bolide import collectives
from bolide.collectives import RankDisagreement
from bolide.core import env
from bolide.core.errors import UserCodeError
from bolide.core.messages import warn_once
from bolide.data.samplers import Part, sharer_of
from bolide.data.samplers import over_ranks as split_loaders
from bolide.engine import elastic
from bolide.engine.step import check_loss, window
from bolide.launch.group import Heartbeat, opened
from bolide.log import load_metric_states, metric_states

if TYPE_CHECKING:
    from bolide.engine.run import Run

WAIT_FOR_AGENT_S = 3.0
"""How long a rank whose peer is gone waits before it says so: the agent ends it meanwhile."""

SIGNALS = {"sigterm": int(signal.SIGTERM), "sigint": int(signal.SIGINT)}


def several(run: Run) -> bool:
    """Whether other ranks run with this one."""
    return run.strategy.world_size > 1


# ---------------------------------------------------------------------- the control word


def connect(run: Run) -> None:
    """Gives the strategy's control word what this run has to say, and tells the run what it hears."""
    word = getattr(run.strategy, "word", None)
    if word is not None:
        word.say, word.hear = partial(say, run), partial(hear, run)


def say(run: Run) -> dict[str, float]:
    """What this rank has to tell the others now."""
    said: dict[str, float] = {}
    if run.trainer.should_stop and not run.stop_agreed:
        said["stop"] = 1.0
    heard = run.signals.heard
    if heard is not None:
        said[_name_of(run, heard)] = 1.0
    if run.writer.has_ended:
        said["written"] = 1.0
    return said


def _name_of(run: Run, signum: int) -> str:
    known = {number: name for name, number in SIGNALS.items()}
    return known.get(signum, "queue")


def hear(run: Run, counts: dict[str, float]) -> None:
    """What ranks said, by how many of them.

    Raises:
        RankDisagreement: `training_step` gave a loss on some ranks and none on others.
    """
    if 0 < counts.get("nothing", 0) < run.strategy.world_size:
        word = run.strategy.word  # type: ignore[attr-defined]
        rows = collectives.gather_numbers("a step without a loss", [float(word.nothing)])
        without = [rank for rank, row in enumerate(rows) if row[0]]
        raise RankDisagreement(
            f"`training_step` returned None on rank(s) {without} and a loss on the others (epoch {run.progress.epoch}, "
            f"batch {run.progress.batch}). The gradients of all ranks are averaged, so leave a batch out on all of "
            "them, or return a loss that is zero: (output * 0).sum()"
        )
    if counts.get("written"):
        run.writer.all_know()
    if counts.get("stop"):
        run.stop_agreed = run.trainer.should_stop = True
    for name, signum in (("sigterm", SIGNALS["sigterm"]), ("queue", run.signals.requeue_signal), ("sigint", 2)):
        if counts.get(name) and run.signals.received is None:
            run.signals.received = signum


def agree(run: Run, where: str) -> None:
    """All ranks share their wishes to stop, and signals, at a moment that all reach: the end of an epoch."""
    if not several(run):
        return
    heard = run.signals.heard
    rows = collectives.gather_numbers(where, [float(run.trainer.should_stop), float(heard or 0)])
    if any(row[0] for row in rows):
        run.stop_agreed = run.trainer.should_stop = True
    found = [int(row[1]) for row in rows if row[1]]
    if found and run.signals.received is None:
        run.signals.received = int(signal.SIGTERM) if signal.SIGTERM in found else found[0]


# ---------------------------------------------------------------------- the step


def rank_step(run: Run, method: Callable[..., Any]) -> Callable[..., Any]:
    """The training step as the strategy runs it; where gradients accumulate, exchanged at the window's end only."""
    strategy = run.strategy
    bound = strategy.bind("training_step", method)
    connect(run)
    if run.trainer.accumulate_grad_batches == 1 or not run.module.automatic_optimization:
        strategy.set_sync(True)
        return bound

    def windowed(*args: Any) -> Any:
        progress = run.progress
        strategy.set_sync(window(run, progress.batch, progress.is_last_batch)[1])
        return bound(*args)

    return windowed


def backward_over_ranks(run: Run, call: Callable[..., Any] | None) -> Callable[..., Any]:
    """The backward pass with the exchange of gradients; `call` is the module's own `backward`, where it has one."""
    strategy: Any = run.strategy
    scaler = run.precision.scaler

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if not loss.requires_grad or loss.dim():
            check_loss(loss)
        if call is None:
            strategy.backward(loss if scaler is None else scaler.scale(loss), *args, **kwargs)
            return
        call(strategy.before_backward(loss if scaler is None else scaler.scale(loss)), *args, **kwargs)
        strategy.after_backward()

    return backward


# ---------------------------------------------------------------------- the batches


def agree_on_length(run: Run) -> None:
    """Makes the number of an epoch's batches the same on all ranks: the least, or with uneven="join" the greatest."""
    source = run.train
    if source is None or not several(run):
        return
    sized = float(source.sized)
    rows = collectives.gather_numbers("the length of the training data", [sized, source.count])
    counts = [row[1] for row in rows]
    if len({row[0] for row in rows}) > 1:
        raise UserCodeError(
            "The training loader has a length on some ranks and none on others; give all ranks the same kind of loader"
        )
    source.own_count = source.count
    if len(set(counts)) == 1:
        return
    join = getattr(run.strategy, "uneven", "stop") == "join"
    if min(counts) == 0:
        raise UserCodeError(
            f"The training loader gives no batch on rank(s) {[i for i, n in enumerate(counts) if n == 0]}; the others "
            f"have {max(counts):g}. Look at what it iterates over there"
        )
    source.count = max(counts) if join else min(counts)
    source.rank_counts = counts
    warn_once(
        f"The ranks have {', '.join(f'{n:g}' for n in counts)} training batches: an epoch ends for all after "
        f"{source.count:g}, "
        + (
            "and a rank that is through earlier contributes nothing until then (uneven='join')."
            if join
            else "that of the shortest (uneven='stop'; DDPStrategy(uneven='join') goes on to the longest)."
        )
    )


def over_ranks(run: Run, pairs: Iterator[tuple[Any, bool]]) -> Iterator[tuple[Any, bool]]:
    """The batches of an epoch with their shares, ending together on all ranks."""
    strategy: Any = run.strategy
    source = run.train
    assert source is not None
    if not run.plan.takes_iterator and run.config.use_distributed_sampler:
        pairs = checked_first(run, pairs)
    number = run.progress.batch
    if source.sized and source.rank_counts and strategy.uneven == "join":
        yield from _joined(run, pairs, number)
        return
    agreed, sharer = pairs if source.sized else _agreed(run, pairs), sharer_of(source.loader)
    for batch, last in agreed:
        if sharer is not None:  # its shares are those of the pass, which begins with the first batch
            strategy.share = sharer.shares.get(number, 1.0)
        strategy.heartbeat.beat(run.progress.total_batches)
        yield from counted(run, batch, last)
        number += 1


def beating(run: Run, pairs: Iterator[Any]) -> Iterator[Any]:
    """The same batches, with word to the agent before each that this process is alive."""
    heartbeat = getattr(run.strategy, "heartbeat", None) or Heartbeat(0)
    for pair in pairs:
        heartbeat.beat(run.progress.total_batches)
        yield pair
    heartbeat.beat(run.progress.total_batches)


def counted(run: Run, batch: Any, last: bool) -> Iterator[tuple[Any, bool]]:
    """One batch; where it has no share, as it is there to keep the ranks together, what it logs does not count."""
    strategy: Any = run.strategy
    ghost = strategy.share == 0.0
    if ghost:
        run.log.open_journal()
    yield batch, last
    strategy.share = 1.0


def _joined(run: Run, pairs: Iterator[tuple[Any, bool]], number: int) -> Iterator[tuple[Any, bool]]:
    """Sized loaders of unequal length: who is through gives its last batch again, with a share of nothing."""
    strategy: Any = run.strategy
    source = run.train
    assert source is not None
    batch, sharer = None, sharer_of(source.loader)
    while number < source.count:
        active = sum(1 for count in source.rank_counts if count > number)
        mine = number < source.own_count
        if mine:
            batch, _ = next(pairs)
            share = sharer.shares.get(number, 1.0) if sharer is not None else 1.0
            strategy.share = share * strategy.world_size / active
        elif batch is None:
            raise UserCodeError(
                "uneven='join' cannot go on from a checkpoint behind this rank's last batch; write uneven='stop'"
            )
        else:
            strategy.share = 0.0
        strategy.heartbeat.beat(run.progress.total_batches)
        yield from counted(run, batch, number + 1 >= source.count)
        number += 1


def _agreed(run: Run, pairs: Iterator[tuple[Any, bool]]) -> Iterator[tuple[Any, bool]]:
    """Loaders without a length: before each batch the ranks tell each other whether they have one."""
    strategy: Any = run.strategy
    join = strategy.uneven == "join"
    batch, ended, first = None, False, True
    while True:
        last = True
        if not ended:
            pair = next(pairs, None)
            if pair is None:
                ended = True
            else:
                batch, last = pair
        rows = collectives.gather_numbers("a training batch", [float(not ended), float(last)])
        present = [bool(row[0]) for row in rows]
        if not all(present) and first and any(present):
            raise UserCodeError(
                f"The training loader gave no batch on rank(s) {[i for i, has in enumerate(present) if not has]}. "
                "Look at what it iterates over there"
            )
        first = False
        if not any(present) or (not join and not all(present)):
            return
        active = sum(present)
        strategy.share = 1.0 if active == len(rows) else (0.0 if ended else len(rows) / active)
        lasts = [bool(row[1]) for row in rows]
        is_last = all(lasts) if join else any(lasts)
        ended = ended or last
        yield from counted(run, batch, is_last)
        if is_last:
            return


def checked_first(run: Run, pairs: Iterator[tuple[Any, bool]]) -> Iterator[tuple[Any, bool]]:
    """Refuses a loader that gives the same first batch on several ranks, where it was not split by index.

    Raises:
        UserCodeError: the data would be trained on several times over.
    """
    source = run.train
    assert source is not None
    loaders = getattr(source.loader, "flattened", [source.loader])
    unsplit = [one for one in loaders if not isinstance(one, DataLoader) or isinstance(one.dataset, IterableDataset)]
    if not unsplit or run.first_batch_checked:
        yield from pairs
        return
    run.first_batch_checked = True
    pair = next(pairs, None)
    mine = digest(pair[0]) if pair is not None else 0.0
    rows = collectives.gather_numbers("the first training batch", [mine])
    values = [row[0] for row in rows if row[0]]
    if len(values) > 1 and len(set(values)) < len(values):
        alike = [i for i, row in enumerate(rows) if row[0] and values.count(row[0]) > 1]
        what = type(getattr(unsplit[0], "dataset", unsplit[0])).__name__
        raise UserCodeError(
            f"Ranks {alike} read the same first training batch from {what}: each sample would be trained on several "
            "times. Write bolide.data.split(dataset) around an IterableDataset, or split it in its __iter__ by "
            "torch.distributed.get_rank(); a loader that is meant to be the same everywhere needs "
            "Trainer(use_distributed_sampler=False)"
        )
    if pair is not None:
        yield pair
        yield from pairs


def digest(batch: Any) -> float:
    """A number that differs for different batches; 0 where there is no tensor in it to tell by."""
    found = 0
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor) and leaf.numel():
            raw = leaf.detach().cpu().contiguous().reshape(-1)[:4096].view(torch.uint8).numpy().tobytes()
            found = zlib.crc32(raw, found)
    return float(found)


# ---------------------------------------------------------------------- the end of a pass


def agree_on_break(run: Run, where: str) -> bool:
    """At the end of an evaluation's pass: whether any rank has heard a signal within it, so that all break it off."""
    if not several(run):
        return False
    heard = run.signals.heard
    rows = collectives.gather_numbers(where, [float(heard or 0) if not run.signals.at_once else 0.0])
    found = [int(row[0]) for row in rows if row[0]]
    if found and run.signals.received is None:
        run.signals.received = int(signal.SIGTERM) if signal.SIGTERM in found else found[0]
    return bool(found)


def in_company(run: Run, pairs: Iterator[Any], ghost: Callable[[Any], Any]) -> Iterator[Any]:
    """The batches of an evaluation where a forward pass needs all ranks: who is through goes along with the others.

    Such a rank gives its last batch to `ghost`, which runs the step on it; nothing of that counts. Ends for all where
    any has heard a signal.
    """
    if not run.strategy.sharded or not several(run):
        yield from pairs
        return
    pair = next(pairs, None)
    last = pair
    first = True
    while True:
        heard = run.signals.heard is not None and not run.signals.at_once
        rows = collectives.gather_numbers("a batch of an evaluation", [float(pair is not None), float(heard)])
        present = [bool(row[0]) for row in rows]
        if not any(present) or any(row[1] for row in rows):
            return
        if first and not all(present):  # a rank that never had one goes along with another's
            lent = collectives.broadcast(pair, present.index(True))
            last = last if last is not None else lent
        first = False
        if pair is not None:
            yield pair
            pair = next(pairs, None)
            last = pair if pair is not None else last
        else:
            log, before = run.log, metric_states(run.module)
            log.open_journal()
            assert last is not None
            ghost(last[0])
            log.scope = None
            log.rewind()
            log.close_journal()
            load_metric_states(run.module, before)


def fetched_by_any(run: Run, fetched: list[int]) -> list[int]:
    """How many batches of each loader any rank had: one of several may have none, where there are few."""
    if not several(run):
        return fetched
    rows = collectives.gather_numbers("the end of an evaluation", fetched)
    return [int(max(column)) for column in zip(*rows, strict=True)]


# ---------------------------------------------------------------------- the beginning and the end of a run


def part_of(run: Run, loaders: Any, training: bool) -> Any:
    """This rank's part of the loaders, where the trainer is to split them."""
    # where the global batch may change a single process's loader, too, must be able to begin within a batch
    if not run.config.use_distributed_sampler or not (several(run) or (training and elastic.scales(run))):
        return loaders
    data_rank, data_size = elastic.data_place(run)
    return split_loaders(loaders, Part(data_rank, data_size, training))


def once_for_all(run: Run, fn: Callable[[], Any], per_node: bool) -> None:
    """Calls `fn` on the first process (of each machine), the others wait for it."""
    if not several(run):
        fn()
        return
    if (run.strategy.local_rank if per_node else run.strategy.global_rank) == 0:
        fn()
    collectives.gather_numbers("prepare_data", [])


def share_versions(run: Run) -> None:
    """Gives the loggers of all ranks the run's number that the first one's have taken."""
    if not several(run):
        return
    owners = [logger for logger in run.trainer.loggers if hasattr(logger, "_version")]
    versions = collectives.broadcast([logger.version for logger in owners] if run.trainer.is_global_zero else [])
    for logger, version in zip(owners, versions, strict=False):
        logger._version = version


def tell_agent(run: Run, error: BaseException) -> None:
    """Leaves the error where an elastic agent looks for it; an error that another rank's end brought about waits.

    The agent ends this process within that time, so that what is printed first is the error that was first.
    """
    opened.failed = True  # this process waits for nobody any more
    if not several(run) or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return
    if is_consequence(error):
        time.sleep(WAIT_FOR_AGENT_S)
        return
    if env.get("TORCHELASTIC_ERROR_FILE") is not None:
        from torch.distributed.elastic.multiprocessing.errors import get_error_handler

        get_error_handler().record_exception(error)


SIGNS_OF_ANOTHERS_END = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "connection was closed"
)  # fmt: skip
"""Words of gloo's errors on a rank whose peer is gone."""


def is_consequence(error: BaseException) -> bool:
    """Whether an error says no more than that another rank is gone, or that rank 0 has failed."""
    if isinstance(error, collectives.FailedOnRankZero):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS_OF_ANOTHERS_END)


# ---------------------------------------------------------------------- what each rank saves for itself


def of_all_ranks(run: Run, own: dict[str, Any]) -> dict[str, Any]:
    """The run's state with that of the other ranks in it, on the first one; it alone writes. All must call it."""
    shape = elastic.shape_of(run)
    if not several(run):
        return {**own, **shape}
    return {**own, **shape, "ranks": collectives.gather_to_zero({name: own[name] for name in elastic.PER_RANK})}
