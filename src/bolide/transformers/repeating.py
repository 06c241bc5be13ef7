"""The part of the trainer that trains more than once: with smaller batches until memory suffices, and over a search.

Owns the way back to where a try began. What a trial of a search is, search.py knows. Who calls: trainer.py, and users.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from bolide.core.errors import ConfigError
from bolide.core.messages import info
from bolide.seed import generators, set_generators
from bolide.transformers import state
from bolide.transformers.utilities import SHRINK, lacks_memory


class Repeating:
    """Training again and again: the trainer's methods for it."""

    args: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    _several: bool

    def _train_with_smaller_batches(self, resume: Any) -> state.TrainOutput:
        """Starts again from the first weights, with 0.9 times the batch, until memory suffices."""
        trainer: Any = self
        first = copy.deepcopy({name: value.detach().cpu() for name, value in self.model.state_dict().items()})
        given, states = None if self.optimizer is trainer._made_optimizer else self.optimizer, generators()
        while True:
            try:
                return trainer._inner_training_loop(**trainer._loop_settings(resume))
            except (torch.OutOfMemoryError, RuntimeError) as error:
                size = int(self.args.per_device_train_batch_size * SHRINK)
                if not lacks_memory(error) or size < 1:
                    raise
                if given is not None:
                    raise ConfigError(
                        "auto_find_batch_size=True makes a new optimizer for each try; leave optimizers=(...) out"
                    ) from error
            info(f"Memory did not suffice; training starts again with per_device_train_batch_size={size}.")
            self.args.per_device_train_batch_size = size
            self.optimizer = self.lr_scheduler = None
            trainer._made_engine = None
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
            self.model.load_state_dict(first)
            set_generators(states)

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | dict[str, Any] | None = None,
        compute_objective: Callable[[dict[str, float]], Any] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: str | None = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Trains again and again with other settings, and returns the best run; see bolide.transformers.search.

        Args:
            hp_space: (trial) -> settings by name; or a dictionary of lists, for a grid or a random choice of them.
            compute_objective: (metrics) -> the value to compare, or several.
            n_trials: how many.
            direction: "minimize" or "maximize", or a list of them, one for each objective.
            backend: "optuna" or "ray".
            hp_name: (trial) -> the name of its folder.
            kwargs: storage, sampler, pruner, study_name, timeout, n_jobs, seed, max_failures, progress_bar,
                gc_after_trial, and catch: the
                errors that end a trial alone, not the search.

        Returns:
            A BestRun, or the list of those on the Pareto front for several directions.
        """
        import bolide.transformers as door

        return door.search.hyperparameter_search(
            self, hp_space, compute_objective, n_trials, direction, backend, hp_name, **kwargs
        )
