"""The loss scaler where each process has parts of the gradients: all leave a step out where any part is not finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

import bolide as pl
from bolide.precision import Precision, RankGradScaler
from bolide.strategies import FSDPStrategy, ModelParallelStrategy
from tests.distributed.support import batches, in_ranks, trainer
from tests.distributed.test_sharded import Tensorwise, Wide, whole


class Overflowing(pl.Callback):
    """On rank 1 alone, an element of its part of a gradient is infinite before the third step; notes all scales."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scales: list[float] = []
        self.weights: list[torch.Tensor] = []

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if trainer.global_step == 2 and trainer.global_rank == 1:
            gradient = module.get_parameter(self.name).grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            local.view(-1)[0] = float("inf")

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        self.scales.append(trainer.precision_plugin.scaler.get_scale())
        self.weights.append(whole(module))


CASES: dict[str, Any] = {
    "fsdp": (Wide, lambda: "fsdp", "net.0.weight"),
    "fsdp in parts": (Wide, lambda: FSDPStrategy(auto_wrap_policy={torch.nn.Linear}), "net.2.weight"),
    # what is not split there is a plain tensor on each rank
    "tensors": (
        Tensorwise,
        lambda: ModelParallelStrategy(tensor_parallel_size=2, data_parallel_size=1),
        "net.0.weight",
    ),
}


def scaled() -> Precision:
    """fp32 with a loss scaler: on a CPU fp16 is not computed in, and what the scaler does is the same."""
    precision = Precision("32-true")
    precision.scaler = RankGradScaler("cpu", init_scale=1024.0)
    return precision


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_leave_a_step_out_together(case: str) -> None:
    kind, strategy, name = CASES[case]

    def work() -> Any:
        noted = Overflowing(name)
        one = trainer(
            2, strategy=strategy(), max_epochs=1, callbacks=[noted], plugins=[scaled()], gradient_clip_val=1.0
        )
        one.fit(kind(), batches(40, 4))
        return noted.scales, noted.weights

    def unscaled() -> Any:
        module = kind()
        trainer(2, strategy=strategy(), max_steps=2, gradient_clip_val=1.0).fit(module, batches(40, 4))
        return whole(module)

    answers = in_ranks(2, work)
    assert torch.allclose(answers[0][1][1], in_ranks(2, unscaled)[0], atol=1e-6)
    for scales, weights in answers:
        assert scales[:2] == [1024.0, 1024.0] and set(scales[2:]) == {512.0}
        assert torch.equal(weights[2], weights[1]) and not torch.equal(weights[3], weights[2])
        assert torch.equal(weights[-1], answers[0][1][-1])


def test_the_scaler_of_sharded_strategies_asks_all_ranks() -> None:
    # without a group it is torch's own, in each of its answers
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for kind in (torch.amp.GradScaler, RankGradScaler):
        scaler = kind("cpu", init_scale=8.0)
        optimizer = torch.optim.SGD(parameters, lr=0.0)
        for worth in (1.0, float("inf")):
            scaler.scale(torch.zeros(()))
            for parameter in parameters:
                parameter.grad = torch.full((3,), 8.0 * worth)
            scaler.unscale_(optimizer)
            assert worth > 1 or torch.equal(parameters[0].grad, torch.ones(3))
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == (8.0 if worth == 1.0 else 4.0)
