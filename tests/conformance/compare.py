"""Compares two recordings of one script and tells the first differences of each kind.

Pure functions over `recording.Record`; called by `test_conformance.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .recording import Record, is_same_number

_CONTEXT_LINES = 4


def differences(reference: Record, candidate: Record) -> list[str]:
    """One text for each kind of difference; empty when the candidate conforms."""
    found = [
        _trace_difference(reference.trace, candidate.trace),
        _metrics_difference(reference, candidate),
        _weights_difference(reference, candidate),
        *(_value_difference(name, reference, candidate) for name in {**reference.values, **candidate.values}),
    ]
    return [text for text in found if text]


def _trace_difference(reference: list[str], candidate: list[str]) -> str:
    if reference == candidate:
        return ""
    at = next(
        (index for index, (left, right) in enumerate(zip(reference, candidate)) if left != right),
        min(len(reference), len(candidate)),
    )
    before = [f"    {line}" for line in reference[max(0, at - _CONTEXT_LINES) : at]]
    left = [f"  - {line}" for line in reference[at : at + _CONTEXT_LINES]] or ["  - (end)"]
    right = [f"  + {line}" for line in candidate[at : at + _CONTEXT_LINES]] or ["  + (end)"]
    sizes = f"{len(reference)} lines in the reference, {len(candidate)} in the candidate"
    return "\n".join([f"trace differs at line {at} ({sizes}; - reference, + candidate)", *before, *left, *right])


def _metrics_difference(reference: Record, candidate: Record) -> str:
    for index, (left, right) in enumerate(zip(reference.metrics, candidate.metrics)):
        if left[:2] != right[:2]:
            return f"metrics entry {index}: reference {left[:2]} {left[2]}, candidate {right[:2]} {right[2]}"
        problem = unequal(left[2], right[2], str(left[:2]))
        if problem:
            return f"metrics entry {index}: {problem}"
    if len(reference.metrics) != len(candidate.metrics):
        return f"metrics: {len(reference.metrics)} entries in the reference, {len(candidate.metrics)} in the candidate"
    return ""


def _weights_difference(reference: Record, candidate: Record) -> str:
    if len(reference.modules) != len(candidate.modules):
        return f"weights: {len(reference.modules)} modules in the reference, {len(candidate.modules)} in the candidate"
    for index, (left, right) in enumerate(zip(reference.modules, candidate.modules)):
        # the plain method of torch, so that looking does not add to a trace
        problem = unequal(
            dict(torch.nn.Module.state_dict(left)),
            dict(torch.nn.Module.state_dict(right)),
            f"weights of module {index}",
        )
        if problem:
            return problem
    return ""


def _value_difference(name: str, reference: Record, candidate: Record) -> str:
    for side, other in ((reference, "candidate"), (candidate, "reference")):
        if name not in side.values:
            return f"value {name!r} was recorded by the {other} only"
    return unequal(reference.values[name], candidate.values[name], f"value {name!r}", exact_tensors=True)


def unequal(left: Any, right: Any, where: str, exact_tensors: bool | None = None) -> str:
    """The first difference between two trees, as a text; empty when equal.

    Tensors are compared to the bit, or, where `exact_tensors` is None and both hold one floating element (a metric),
    to 1e-6 relative. Floats are compared to 1e-6 relative, everything else by ==.
    """
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return f"{where}: {left.dtype} {list(left.shape)} in the reference, {right.dtype} {list(right.shape)}"
        is_metric = exact_tensors is None and left.numel() == 1 and left.is_floating_point()
        if (is_metric and is_same_number(left.item(), right.item())) or torch.equal(left, right):
            return ""
        both_nan = left.is_floating_point() and bool(left.isnan().all()) and bool(right.isnan().all())
        return "" if both_nan else f"{where}: {left} in the reference, {right} in the candidate"
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        if set(left) != set(right):
            only_left, only_right = set(left) - set(right), set(right) - set(left)
            return f"{where}: only in the reference {sorted(only_left)}, only in the candidate {sorted(only_right)}"
        pairs = [(left[key], right[key], f"{where}[{key!r}]") for key in left]
    elif isinstance(left, (list, tuple)) and type(left) is type(right) and len(left) == len(right):
        pairs = [(a, b, f"{where}[{index}]") for index, (a, b) in enumerate(zip(left, right))]
    elif isinstance(left, float) and isinstance(right, float):
        return "" if is_same_number(left, right) else f"{where}: {left!r} in the reference, {right!r} in the candidate"
    else:
        same = type(left) is type(right) and left == right
        return "" if same else f"{where}: {_short(left)} in the reference, {_short(right)} in the candidate"
    return next((text for a, b, place in pairs if (text := unequal(a, b, place, exact_tensors))), "")


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Path) else repr(value)
    return f"{type(value).__name__} {text if len(text) <= 800 else text[:800] + '...'}"
