"""What `configure_optimizers` may return at its edges."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from bolide.core.errors import MisconfigurationException, UserCodeError
from bolide.engine.optimizers import LightningOptimizer
from tests.fixtures import OneWeight, loader, trainer


@pytest.mark.parametrize("returned", [[], (), ([], [])])
def test_no_optimizer_at_all_is_refused_in_automatic_optimization(returned: Any) -> None:
    class Module(OneWeight):
        def configure_optimizers(self) -> Any:
            return returned

    with pytest.raises(MisconfigurationException, match="returned no optimizer; return one, or None"):
        trainer(max_epochs=1).fit(Module(), loader(1))


@pytest.mark.parametrize("returned", [[], ([], [])])
def test_manual_optimization_may_have_no_optimizer(returned: Any) -> None:
    class Module(OneWeight):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self) -> Any:
            return returned

    module = Module()
    trainer(max_epochs=1).fit(module, loader(2))
    assert len(module.seen) == 2 and module.w.item() == 0.0


def test_an_optimizer_that_needs_a_closure_is_refused_with_accumulation() -> None:
    class Module(OneWeight):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters())

    with pytest.raises(UserCodeError, match="accumulate_grad_batches=2: LBFGS"):
        trainer(max_epochs=1, accumulate_grad_batches=2).fit(Module(), loader(4))


def test_a_copy_of_the_proxy_is_a_proxy_of_a_copy() -> None:
    proxy = LightningOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5))
    for other in (copy.deepcopy(proxy), pickle.loads(pickle.dumps(proxy))):  # noqa: S301 what was dumped here
        assert type(other) is LightningOptimizer
        assert other.param_groups[0]["lr"] == 0.5
        assert other.param_groups[0]["params"][0] is not proxy.param_groups[0]["params"][0]
