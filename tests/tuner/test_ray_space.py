"""Ray Tune's own spaces, as optuna's suggestions."""

from __future__ import annotations

import pytest

from bolide.core.errors import ConfigError
from bolide.tuner.study import suggest

optuna = pytest.importorskip("optuna")
tune = pytest.importorskip("ray.tune")

SPACE = {
    "real": tune.uniform(0.0, 1.0), "log": tune.loguniform(1e-5, 1e-2), "word": tune.choice(["a", "b"]),
    "whole": tune.randint(1, 5), "many": tune.lograndint(1, 100), "steps": tune.quniform(0.0, 1.0, 0.25),
    "even": tune.qrandint(0, 10, 2), "grid": tune.grid_search([4, 8]),
}  # fmt: skip


@pytest.mark.parametrize("space", [SPACE, lambda trial: SPACE], ids=["dictionary", "function"])
def test_entries_of_ray_are_chosen_by_optuna(space):
    study = optuna.create_study()
    found = suggest(study.ask(), space)
    dist = optuna.distributions
    assert study.trials[0].distributions == {
        "real": dist.FloatDistribution(0.0, 1.0), "log": dist.FloatDistribution(1e-5, 1e-2, log=True),
        "word": dist.CategoricalDistribution(["a", "b"]), "whole": dist.IntDistribution(1, 4),
        "many": dist.IntDistribution(1, 99, log=True), "steps": dist.FloatDistribution(0.0, 1.0, step=0.25),
        "even": dist.IntDistribution(0, 10, step=2), "grid": dist.CategoricalDistribution([4, 8]),
    }  # fmt: skip
    assert found == study.trials[0].params


def test_others_are_refused_with_what_to_write():
    ask = optuna.create_study().ask()
    for entry in (tune.sample_from(lambda spec: 1), tune.randn(0, 1)):
        with pytest.raises(ConfigError, match=r"space\['lr'\] is Ray's .* not translated; write trial.suggest_float"):
            suggest(ask, lambda trial, entry=entry: {"lr": entry})
