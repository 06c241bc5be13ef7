"""What all ranks predicted, put together in the order of the samples. Who calls: engine/predict, where it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from bolide import collectives
from bolide.core.errors import UserCodeError
from bolide.data.samplers import RankBatches

if TYPE_CHECKING:
    from bolide.engine.run import Run


def in_order(run: Run, outputs: list[Any], loader: Any) -> list[Any]:
    """The outputs of all ranks on the first one, on the CPU: one for each global batch. All must call it.

    A batch of a rank holds every W-th sample of its global batch, so the first dimensions of tensors, and lists, are
    dealt back in turn. On the other ranks the list is empty.

    Raises:
        UserCodeError: an output that has no entry for each sample.
    """
    if run.strategy.world_size == 1:
        return outputs
    mine = tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, outputs)
    everyone = collectives.gather_to_zero(mine)
    if everyone is None:
        return []
    dealt = isinstance(getattr(loader, "batch_sampler", None), RankBatches)
    everyone = [everyone[rank] for rank in run.strategy.counting_ranks]  # type: ignore[attr-defined]
    found: list[Any] = []
    for number in range(max(map(len, everyone))):
        parts = [rank[number] for rank in everyone if number < len(rank)]
        found += [_dealt_back(parts)] if dealt else parts
    return found


def _dealt_back(parts: list[Any]) -> Any:
    """One output of those of the ranks, sample by sample in turn."""
    if len(parts) == 1:
        return parts[0]
    flat = [tree_flatten(part) for part in parts]
    if any(spec != flat[0][1] for _, spec in flat):
        # lists of one entry a sample differ in length between ranks
        if all(isinstance(part, list) for part in parts):
            return _in_turn(parts)
        raise _no_samples(parts[0])
    leaves = [_joined([leaves[i] for leaves, _ in flat]) for i in range(len(flat[0][0]))]
    if all(isinstance(part, list) for part in parts) and not all(isinstance(leaf, Tensor) for leaf in flat[0][0]):
        return _in_turn(parts)
    return tree_unflatten(leaves, flat[0][1])


def _joined(leaves: list[Any]) -> Any:
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return leaves[0]
    if any(leaf.dim() == 0 for leaf in leaves):
        raise _no_samples(leaves[0])
    count = sum(len(leaf) for leaf in leaves)
    result = torch.empty((count, *leaves[0].shape[1:]), dtype=leaves[0].dtype)
    for rank, leaf in enumerate(leaves):
        result[rank :: len(leaves)][: len(leaf)] = leaf
    return result


def _in_turn(parts: list[list[Any]]) -> list[Any]:
    return [part[i] for i in range(max(map(len, parts))) for part in parts if i < len(part)]


def _no_samples(output: Any) -> UserCodeError:
    what = f"a tensor of shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
    return UserCodeError(
        f"predict_step returned {what}, which has no entry for each sample, so return_predictions='ordered' cannot put "
        "the processes' outputs in order; return tensors whose first dimension is the batch"
    )
