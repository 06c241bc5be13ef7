"""A copy of a state into memory that is used again for the next one.

Owns the arena (one piece of host memory) and the walk over a state; knows neither files nor threads. Who calls:
checkpoint/writer.py, which writes the copy to a file while training goes on.
"""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

ALIGNMENT_BYTES = 64
"""Where a storage may begin in the arena: the line of a processor's cache, and a multiple of every element size."""

LARGE_BYTES = 1 << 18
"""From here on a tensor in host memory is worth a copy of its own; smaller ones are copied by one call for all."""

MEMMOVE_THREADS = 3
"""With no more threads than this, memmove is faster than torch's copy: it does not read what it overwrites."""

_TOUCH_BYTES = 1 << 24

_ATOMS = frozenset({
    type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip
_EVENT_DEVICES = frozenset({"cuda"})


class Arena:
    """One piece of private host memory, in large pages where the system has them.

    Processes that are forked do not get it: loader workers neither double it nor make the next copy slow.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._memory: mmap.mmap | None = None
        self._bytes: Tensor | None = None
        self._pinned = False
        self._touching: threading.Thread | None = None

    def grow(self, nbytes: int) -> None:
        """Makes the arena `nbytes` large, where it is smaller. What it held is gone.

        Raises:
            OSError: there is no memory.
        """
        if nbytes <= self.nbytes:
            return
        self.free()
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for advice in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            if hasattr(mmap, advice):
                try:
                    memory.madvise(getattr(mmap, advice))
                except OSError:  # a kernel without it: slower, not wrong
                    pass
        self._memory, self._bytes, self.nbytes = memory, torch.frombuffer(memory, dtype=torch.uint8), nbytes

    def tensor(self, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
        """The bytes from `offset` on as a tensor with a storage of its own: a file of it holds these bytes alone."""
        count = math.prod(shape)
        if count == 0:
            return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
        assert self._memory is not None
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset)
        return flat if len(shape) == 1 else flat.as_strided(shape, stride)

    def touch(self) -> None:
        """Lets a thread write to every page, so that the first copy need not wait for the system to find them."""
        if self._bytes is None:
            return
        start, end = self._bytes.data_ptr(), self._bytes.data_ptr() + self.nbytes

        def write() -> None:
            for at in range(start, end, _TOUCH_BYTES):
                ctypes.memset(at, 0, min(_TOUCH_BYTES, end - at))

        self.settle()
        self._touching = threading.Thread(target=write, name="bolide-arena", daemon=True)
        self._touching.start()

    def settle(self) -> None:
        """Waits for `touch`."""
        if self._touching is not None:
            self._touching.join()
            self._touching = None

    def pin(self) -> None:
        """Tells CUDA that the memory stays where it is, so that devices copy into it at full speed, by themselves."""
        if self._pinned or self._bytes is None:
            return
        # the exact size; torch's own allocator of pinned memory would round it up to a power of two
        self._pinned = int(torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), self.nbytes, 0)) == 0

    def free(self) -> None:
        """Gives the memory back, once no tensor lies in it any more."""
        self.settle()
        if self._pinned and self._bytes is not None:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        self._memory, self._bytes, self.nbytes, self._pinned = None, None, 0, False


class Snapshot:
    """A state as it was. `state` may be read once `wait` has returned; the next snapshot overwrites it."""

    def __init__(self, state: Any, events: list[torch.cuda.Event], sources: list[Tensor]) -> None:
        self.state = state
        self._events = events
        self._sources = sources  # kept until they are copied: their memory must not go to another tensor before

    def wait(self) -> None:
        """Waits for the copies that devices make by themselves."""
        for event in self._events:
            event.synchronize()
        self._events, self._sources = [], []


class Snapshots:
    """Takes snapshots, all into the same memory: there is one at a time.

    Tensors are copied by their storages, so what shared memory shares it in the copy, and a file of the copy is the
    file of the original. Containers and plain data are copied too; nothing of the copy is changed by the training.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self._records: list[_Record | None] = []  # of the last snapshot, tensor by tensor
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def take(self, state: Any) -> Snapshot:
        """Copies `state`. When it returns, the state in host memory may be changed.

        CUDA's current streams wait for the copies made on a stream of their own, and the caller does not.

        Raises:
            OSError: there is no memory for the copy.
        """
        # tensors made in inference mode could not be written to outside of it, by the next snapshot
        with torch.inference_mode(False), torch.no_grad():
            self.arena.settle()
            walk = _Walk(self.arena, self._records)
            copied = walk.copy(state)
            if walk.used > self.arena.nbytes:
                del copied
                used = walk.used
                del walk
                self.reserve(used)
                walk = _Walk(self.arena, self._records)
                copied = walk.copy(state)
            self._records = walk.records
            _copy_host(walk)
            return Snapshot(copied, self._copy_devices(walk), [source for _, source in walk.from_devices])

    def reserve(self, nbytes: int) -> None:
        """Makes room for states of `nbytes`."""
        if nbytes > self.arena.nbytes:
            self._records = []
            self.arena.grow(-(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def free(self) -> None:
        """Gives the memory back."""
        self._records = []
        self.arena.free()

    def _copy_devices(self, walk: _Walk) -> list[torch.cuda.Event]:
        pairs: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        for target, source in walk.from_devices:
            pairs.setdefault(source.device, []).append((target, source))
        events: list[torch.cuda.Event] = []
        for device, copies in pairs.items():
            if device.type not in _EVENT_DEVICES:
                for target, source in copies:
                    target.copy_(source)
                continue
            self.arena.pin()
            stream = self._streams.setdefault(device, torch.cuda.Stream(device))
            current = torch.cuda.current_stream(device)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for target, source in copies:
                    target.copy_(source, non_blocking=True)
            event = stream.record_event()
            current.wait_event(event)  # whatever changes the state is queued after this
            events.append(event)
        return events


def nbytes_of(state: Any) -> int:
    """How much memory a snapshot of `state` takes, in bytes."""
    with torch.no_grad():
        walk = _Walk(Arena(), [])
        walk.copy(state)
    return walk.used


class _Record:
    """A tensor of a snapshot that is the whole of its storage: the next snapshot uses it again."""

    __slots__ = ("dtype", "end", "is_complex", "is_large", "nbytes", "offset", "shape", "stride", "target")

    def __init__(self, target: Tensor, offset: int, end: int, nbytes: int) -> None:
        self.target, self.offset, self.end, self.nbytes = target, offset, end, nbytes
        self.dtype, self.shape, self.stride = target.dtype, target.shape, target.stride()
        self.is_large, self.is_complex = nbytes >= LARGE_BYTES, target.is_complex()


class _Walk:
    """One walk over a state: makes the copy's containers and tensors, and lists which memory is to be copied.

    Where the arena is too small, `used` says how large it must be, and the copy is of no use. A state seldom changes
    its shape, so the n-th tensor is most often laid where the n-th of the last walk lay, and then nothing is made.
    """

    def __init__(self, arena: Arena, before: Sequence[_Record | None]) -> None:
        self.used = 0
        self.records: list[_Record | None] = []
        self.small: tuple[list[Tensor], list[Tensor]] = ([], [])
        self.large: list[tuple[Tensor, Tensor]] = []
        self.from_devices: list[tuple[Tensor, Tensor]] = []
        self._arena = arena
        self._before = before
        self._copies: dict[int, Any] = {}  # by id: what stands in a state twice stands in its copy twice
        self._places: dict[int, tuple[int, Tensor | None]] = {}  # of a storage: where, and the first tensor there
        self._kept: list[Tensor] = []  # made on the way; no other may get their ids

    def copy(self, value: Any) -> Any:
        """The copy of one value."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        key = id(value)
        known = self._copies.get(key)
        if known is not None:
            return known
        made: Any
        if kind is Tensor:
            made = self._tensor(value)
        elif kind is dict or kind is OrderedDict:
            made = self._copies[key] = kind()  # before its members, which may hold it
            for name, member in value.items():
                made[name] = self.copy(member)
            if kind is OrderedDict:
                made.__dict__.update(self.copy(value.__dict__))  # a module's state keeps versions there
        elif kind is list:
            made = self._copies[key] = []
            made.extend(map(self.copy, value))
        elif kind is tuple or kind is set:
            made = kind(map(self.copy, value))
        elif isinstance(value, Tensor):
            made = self._unusual(value)
        else:
            made = copy.deepcopy(value)
        self._copies[key] = made
        return made

    def _tensor(self, source: Tensor) -> Tensor:
        index = len(self.records)
        before = self._before[index] if index < len(self._before) else None
        if source.requires_grad or source.is_nested:
            return self._unusual(source)
        try:
            storage = source.untyped_storage()
        except NotImplementedError:  # sparse and other layouts
            return self._unusual(source)
        nbytes, key = storage.nbytes(), storage._cdata
        if (
            before is not None
            and before.offset == self.used
            and before.nbytes == nbytes
            and before.dtype is source.dtype
            and before.shape == source.shape
            and before.stride == source.stride()
            and source.storage_offset() == 0
            and key not in self._places
            and not source.is_neg()
            and not (before.is_complex and source.is_conj())
            and (source.is_cpu or not source.is_meta)
        ):
            self._places[key] = (self.used, before.target)
            self.used = before.end
            self.records.append(before)
            self._list(before.target, source, before.is_large)
            return before.target
        if _is_unusual(source):
            return self._unusual(source)
        return self._new(source, storage)

    def _new(self, source: Tensor, storage: torch.UntypedStorage) -> Tensor:
        """A tensor that is laid elsewhere than in the last snapshot, or not the first of its storage."""
        nbytes, start = storage.nbytes(), source.storage_offset()
        shape, stride = source.shape, source.stride()
        offset, owner = self._places.get(storage._cdata, (self.used, None))
        if owner is not None:
            self.records.append(None)
            return _view(source.dtype, owner.untyped_storage(), start, shape, stride)
        # an empty one takes its share too: no two have one place
        end = offset + max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        self.used = max(self.used, end)
        if end > self._arena.nbytes:
            self._places[storage._cdata] = (offset, None)
            return source
        if start == 0 and source.nbytes == nbytes and source.is_contiguous():
            target = self._arena.tensor(offset, source.dtype, shape, stride)
            self.records.append(_Record(target, offset, end, nbytes))
            self._list(target, source, nbytes >= LARGE_BYTES)
        else:  # a part of its storage, or in another order: the storage is copied whole, as it is saved whole
            self.records.append(None)
            whole = self._arena.tensor(offset, torch.uint8, (nbytes,), (1,))
            self._list(whole, _view(torch.uint8, storage, 0, (nbytes,), (1,)), nbytes >= LARGE_BYTES)
            target = _view(source.dtype, whole.untyped_storage(), start, shape, stride)
        self._places[storage._cdata] = (offset, target)
        return target

    def _list(self, target: Tensor, source: Tensor, is_large: bool) -> None:
        if not source.is_cpu:
            self.from_devices.append((target, source))
        elif is_large:
            self.large.append((target, source))
        else:
            self.small[0].append(target)
            self.small[1].append(source)

    def _unusual(self, source: Tensor) -> Tensor:
        """A tensor that is more than a view of a storage, copied into memory of its own where it must be."""
        plain = source.detach()
        self._kept.append(plain)
        if type(source) is Parameter and type(plain) is Tensor:
            return Parameter(self._tensor(plain), source.requires_grad)
        if type(source) is Tensor and source.requires_grad:
            return self._tensor(plain).detach().requires_grad_()
        self.records.append(None)
        if source.is_meta:
            return plain
        return plain.clone() if source.is_cpu else plain.cpu()


def _is_unusual(source: Tensor) -> bool:
    """Whether the memory of a strided tensor does not hold its values as they are, or is not there."""
    return source.is_meta or source.is_conj() or source.is_neg() or source.is_quantized


def _view(
    dtype: torch.dtype, storage: torch.UntypedStorage, start: Any, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, start, shape, stride)


def _copy_host(walk: _Walk) -> None:
    """Copies what lies in host memory."""
    if walk.small[0]:
        torch._foreach_copy_(*walk.small)
    if torch.get_num_threads() > MEMMOVE_THREADS:
        for target, source in walk.large:
            target.copy_(source)
        return
    for target, source in walk.large:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
