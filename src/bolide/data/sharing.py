"""`split`: an IterableDataset shared by the ranks of a group and the workers of each rank's loader, each sample once.

Public as `bolide.data.split`. Map-style datasets need nothing: the engine splits them by index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from bolide import collectives
from bolide.core import env


def split(dataset: Iterable[Any]) -> Any:
    """`dataset`, of which each worker of each rank reads every n-th sample: together they read all, none twice.

    A Hugging Face IterableDataset is split by its own way, which gives each rank whole files where they divide. The
    others read, and skip, what is not theirs. Ranks may differ by one sample; an epoch ends for all with the shortest
    (`DDPStrategy(uneven=...)`).

    Args:
        dataset: any iterable that gives the same samples in the same order on all ranks.

    Example::

        loader = DataLoader(bolide.data.split(MyIterableDataset()), batch_size=32, num_workers=2)
    """
    rank, size = _place()
    if size > 1 and hasattr(dataset, "_distributed") and hasattr(dataset, "n_shards"):
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(dataset, rank=rank, world_size=size)
    return Split(dataset)


def _place() -> tuple[int, int]:
    """This rank and the number of ranks; before the group is open, as the launcher tells."""
    if collectives.is_open():
        return collectives.rank(), collectives.size()
    return env.rank(), int(env.get("WORLD_SIZE") or 1)


class Split(IterableDataset[Any]):
    """One rank's and one worker's part of an iterable. `set_epoch`, where the dataset has it, reaches it."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self.dataset = dataset
        self.place = _place()

    def __iter__(self) -> Iterator[Any]:
        # in a worker process there is no group: what was found when the loader was made, or is found before it, counts
        rank, size = _place() if collectives.is_open() else self.place
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        yield from islice(iter(self.dataset), rank * workers + number, None, size * workers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "place": _place() if collectives.is_open() else self.place}

    def set_epoch(self, epoch: int) -> None:
        """Tells the dataset which epoch begins, where it wants to know."""
        inner: Any = self.dataset
        if callable(getattr(inner, "set_epoch", None)):
            inner.set_epoch(epoch)
