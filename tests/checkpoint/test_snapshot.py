from __future__ import annotations

import io
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bolide.checkpoint.snapshot import LARGE_BYTES, Arena, Snapshots, nbytes_of

LARGE = LARGE_BYTES // 4 + 3


class Net(nn.Module):
    """Tied weights, batch norm, and another order of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8, bias=False)
        self.b = nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(8)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.thin = nn.Conv2d(4, 4, 1).to(memory_format=torch.channels_last)
        self.big = nn.Parameter(torch.randn(LARGE))


def trained() -> tuple[Net, torch.optim.Optimizer]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return net, optimizer


def whole_state() -> dict[str, Any]:
    net, optimizer = trained()
    flat = torch.arange(20.0)
    same = torch.ones(3)
    return {
        "state_dict": net.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "views": [flat[2:5], flat[:10].view(2, 5).t(), flat[4:4]],
        "twice": [same, same],
        "tied": [same.detach(), same.view(3, 1)],
        "dtypes": [torch.ones(3, dtype=d) for d in (torch.bfloat16, torch.uint8, torch.bool, torch.complex64)],
        "odd": [torch.empty(0), torch.empty(0, 3), torch.tensor(2.0), torch.zeros(1, 5).as_strided((1, 5), (7, 1))],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "plain": {"n": 1, "f": 0.5, "t": ("a", None, True), "s": {1, 2}, "size": torch.Size([1]), 3: torch.float16},
    }  # fmt: skip


def saved(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def test_a_file_of_the_copy_is_the_file_of_the_original() -> None:
    """Ties, views, orders of memory and containers: all that torch.save sees is the same, byte for byte."""
    state = whole_state()
    expected = saved(state)
    taker = Snapshots()
    for _ in range(3):
        taken = taker.take(state)
        taken.wait()
        assert saved(taken.state) == expected


def test_the_next_state_overwrites_the_last() -> None:
    taker = Snapshots()
    for _ in range(3):
        state = whole_state()  # other values in other memory, some of it where the last state was
        assert saved(taker.take(state).state) == saved(state)


def storages_of(value: Any) -> list[torch.UntypedStorage]:
    if isinstance(value, Tensor):
        return [value.untyped_storage()]
    if isinstance(value, dict):
        return [one for member in value.values() for one in storages_of(member)]
    if isinstance(value, (list, tuple)):
        return [one for member in value for one in storages_of(member)]
    return []


def test_nothing_is_shared_with_the_original() -> None:
    state = whole_state()
    taken = Snapshots().take(state).state
    theirs = {storage.data_ptr() for storage in storages_of(state) if storage.nbytes()}
    assert not theirs & {storage.data_ptr() for storage in storages_of(taken)}
    state["plain"]["t"], state["plain"]["new"] = (), 1
    state["state_dict"]._metadata["norm"]["version"] = 99
    assert taken["plain"] == {
        "n": 1, "f": 0.5, "t": ("a", None, True), "s": {1, 2}, "size": torch.Size([1]), 3: torch.float16,
    }  # fmt: skip
    assert taken["state_dict"]._metadata["norm"]["version"] == 2


def test_ties_hold_in_the_copy() -> None:
    taken = Snapshots().take(whole_state()).state
    weights = taken["state_dict"]
    assert weights["a.weight"].untyped_storage()._cdata == weights["b.weight"].untyped_storage()._cdata
    assert weights["a.weight"] is not weights["b.weight"]
    assert taken["twice"][0] is taken["twice"][1]
    assert taken["tied"][0].untyped_storage()._cdata == taken["twice"][0].untyped_storage()._cdata
    view = taken["views"][0]
    assert view.storage_offset() == 2 and view.untyped_storage().nbytes() == 80


def test_the_same_memory_and_the_same_tensors_are_used_again() -> None:
    net, optimizer = trained()
    taker = Snapshots()

    def take() -> Any:
        random = torch.get_rng_state()  # in other memory each time
        return taker.take({"w": net.state_dict(), "o": optimizer.state_dict(), "rng": random}).state

    first = take()
    nbytes = taker.arena.nbytes
    second = take()
    assert taker.arena.nbytes == nbytes
    assert (
        second["w"]["big"] is first["w"]["big"]
        and second["o"]["state"][0]["exp_avg"] is (first["o"]["state"][0]["exp_avg"])
    )
    assert second["rng"] is first["rng"]


def test_a_state_that_changes_its_shape() -> None:
    taker = Snapshots()
    for size in (3, LARGE, 10, 2 * LARGE, 5):
        state = {"before": torch.randn(7), "it": torch.randn(size), "after": [torch.randn(LARGE), torch.randn(2, 2)]}
        assert saved(taker.take(state).state) == saved(state)
    # tensors come and go, and get other kinds
    assert saved(taker.take({"a": torch.ones(5).int()}).state) == saved({"a": torch.ones(5).int()})
    assert taker.take({}).state == {}


def test_a_tie_that_comes_and_goes() -> None:
    taker = Snapshots()
    one, other = torch.randn(6), torch.randn(6)
    for state in ([one, other], [one, one.detach()], [other, one], [one[:3], one], [one, one[:3]]):
        for _ in range(2):
            assert saved(taker.take(state).state) == saved(state)


def test_room_is_the_state_and_little_more() -> None:
    state = [torch.randn(LARGE), torch.randn(3), torch.empty(0)]
    assert nbytes_of(state) <= LARGE * 4 + 12 + 3 * 64
    taker = Snapshots()
    taker.take(state)
    assert taker.arena.nbytes <= nbytes_of(state) + 4096
    taker.free()
    assert taker.arena.nbytes == 0
    assert saved(taker.take(state).state) == saved(state)


@pytest.mark.parametrize("threads", [1, 8], ids=["memmove", "torch's copy"])
def test_values_that_memory_alone_does_not_tell(threads: int) -> None:
    """Views that conjugate or negate, at places where the snapshot before had ordinary tensors."""
    taker = Snapshots()
    for size in (4, LARGE):
        values = torch.randn(size, dtype=torch.complex64)
        ordinary = {"z": values.clone(), "y": values.real.clone(), "w": values.clone()}
        views = {"z": values.conj(), "y": torch._neg_view(values.real.clone()), "w": values}
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for state in (ordinary, views, ordinary, views):
                taken = taker.take(state).state
                assert all(torch.equal(taken[key].resolve_conj().resolve_neg(), state[key]) for key in state)
        finally:
            torch.set_num_threads(before)


UNUSUAL: dict[str, Callable[[], Tensor]] = {
    "a parameter": lambda: nn.Parameter(torch.ones(3)),
    "a frozen parameter": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
    "one with a gradient": lambda: torch.ones(3, requires_grad=True),
    "a result with a gradient": lambda: torch.ones(3, requires_grad=True) * 2,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "without memory": lambda: torch.ones(3, device="meta"),
    "of inference": lambda: _of_inference(),
}


def _of_inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(3) * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_tensors(name: str) -> None:
    source = UNUSUAL[name]()
    taker = Snapshots()
    for _ in range(2):
        first, copied, last = taker.take([torch.ones(5), source, torch.ones(5)]).state
        assert type(copied) is type(source) and copied.requires_grad == source.requires_grad
        assert copied.dtype == source.dtype and copied.layout == source.layout and copied.device == source.device
        if name != "without memory":
            dense = [t.dequantize() if t.is_quantized else t.detach().to_dense() for t in (copied, source)]
            assert torch.equal(*dense)
        assert torch.equal(first, torch.ones(5)) and torch.equal(last, torch.ones(5)) and first is not last
    kept = copied.clone() if name == "quantized" else None
    if kept is None and name not in ("without memory", "of inference"):
        with torch.no_grad():
            source.mul_(2)
        assert not torch.equal(copied.detach().to_dense(), source.detach().to_dense())


def test_a_parameter_moves_no_other_from_its_place() -> None:
    taker = Snapshots()
    state = [nn.Parameter(torch.ones(3)), torch.ones(5)]
    assert taker.take(state).state[1] is taker.take(state).state[1]


def test_under_inference_mode_and_outside_of_it() -> None:
    taker = Snapshots()
    state = whole_state()
    with torch.inference_mode():
        taker.take(state)
    assert saved(taker.take(state).state) == saved(state)


def test_under_another_default_device() -> None:
    state = {"a": torch.randn(3, 4), "b": torch.randn(9)[2:]}
    with torch.device("meta"):
        taken = Snapshots().take(state).state
    assert saved(taken) == saved(state)


def test_containers_that_are_not_dictionaries_and_lists() -> None:
    inner: dict[str, Any] = {}
    inner["itself"] = inner
    state = {"counter": Counter("aab"), "array": np.arange(3), "bytes": bytearray(b"ab"), "loop": inner,
             "ordered": OrderedDict(a=1)}  # fmt: skip
    taken = Snapshots().take(state).state
    assert taken["counter"] == state["counter"] and taken["counter"] is not state["counter"]
    assert taken["array"].tolist() == [0, 1, 2] and taken["array"] is not state["array"]
    assert taken["bytes"] == b"ab" and taken["bytes"] is not state["bytes"]
    assert taken["loop"]["itself"] is taken["loop"] and taken["loop"] is not inner
    assert type(taken["ordered"]) is OrderedDict


def test_one_container_in_two_places_is_one_in_the_copy() -> None:
    shared = [1, 2]
    taken = Snapshots().take({"a": shared, "b": shared}).state
    assert taken["a"] is taken["b"] and taken["a"] == shared and taken["a"] is not shared


def test_touched_memory_is_used_as_it_is() -> None:
    taker = Snapshots()
    taker.reserve(4 * LARGE_BYTES + 5)
    taker.arena.touch()
    nbytes = taker.arena.nbytes
    state = whole_state()
    assert saved(taker.take(state).state) == saved(state) and taker.arena.nbytes == nbytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_slow_the_next_snapshot() -> None:
    """It has no copy of the memory: the pages stay the parent's own, and it can end in peace."""
    arena = Arena()
    arena.grow(1 << 20)
    held = arena.tensor(0, torch.uint8, (1 << 20,), (1,))
    held.fill_(7)
    pid = os.fork()
    if pid == 0:
        del held
        arena.free()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert int(held.sum()) == 7 << 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_snapshot_of_a_gpu_is_the_state_at_the_call() -> None:
    weights = torch.randn(1 << 22, device="cuda")
    small = torch.ones(3, device="cuda", dtype=torch.bfloat16)
    taker = Snapshots()
    for _ in range(3):
        expected = weights.cpu(), small.cpu()
        taken = taker.take({"w": weights, "s": small, "view": weights[5:9]})
        weights.mul_(2)
        small.add_(1)
        taken.wait()
        assert torch.equal(taken.state["w"], expected[0]) and torch.equal(taken.state["s"], expected[1])
        assert torch.equal(taken.state["view"], expected[0][5:9]) and taken.state["w"].is_cpu
    taker.free()
