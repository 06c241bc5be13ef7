"""`debug="underflow_overflow"`: stops training at the first module whose input, output or weights are not finite.

Owns the hooks that look, and the report of the modules that ran before. Looking waits for the device at each module.
Who calls: setup.py, where a run asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bolide.core.errors import UserCodeError

REPORTED = 20
"""So many of the modules that ran last are shown."""


class Watch:
    """Looks at each module's tensors as it runs.

    Args:
        model: whose modules are watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.lines: deque[str] = deque(maxlen=REPORTED)
        self.passes = 0
        self.handles = [
            part.register_forward_hook(self._hook(name or type(model).__name__)) for name, part in model.named_modules()
        ]
        self.handles.append(model.register_forward_pre_hook(self._count))

    def remove(self) -> None:
        """Takes the hooks away."""
        for handle in self.handles:
            handle.remove()

    def _count(self, module: nn.Module, inputs: Any) -> None:
        self.passes += 1

    def _hook(self, name: str) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            wrong = []
            self.lines.append(f"{name} ({type(module).__name__})")
            for what, tensor in _tensors(module, inputs, output):
                size = tensor.detach().abs()
                self.lines.append(f"  {what}: |x| from {size.min():.3g} to {size.max():.3g}")
                if not torch.isfinite(size).all():
                    wrong.append(what)
            if wrong:
                report = "\n".join(self.lines)
                raise UserCodeError(
                    f'debug="underflow_overflow": in forward pass {self.passes}, {name} ({type(module).__name__}) has '
                    f"NaN or infinity in its {', '.join(wrong)}. What ran before it, the last of all at the end:\n"
                    f"{report}"
                )

        return look


def _tensors(module: nn.Module, inputs: Any, output: Any) -> Iterator[tuple[str, Tensor]]:
    found = [(name, parameter) for name, parameter in module.named_parameters(recurse=False)]
    found += [(f"input {i}", leaf) for i, leaf in enumerate(tree_leaves(inputs))]
    found += [(f"output {i}", leaf) for i, leaf in enumerate(tree_leaves(output))]
    for name, leaf in found:
        if isinstance(leaf, Tensor) and leaf.numel() and leaf.is_floating_point():
            yield name, leaf
