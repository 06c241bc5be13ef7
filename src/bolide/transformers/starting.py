"""The part of the trainer that finds out how long a run is and where it begins; each method may be overridden.

Owns the counting of steps and epochs, the checkpoint to go on from, and what its record says. Who calls: trainer.py.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import torch
from torch import nn

from bolide import collectives
from bolide.checkpoint.file import beside
from bolide.core.errors import CheckpointNotFoundError, ConfigError
from bolide.core.messages import info, warn
from bolide.data.loaders import length_of
from bolide.transformers import state, weights
from bolide.transformers.folders import get_last_checkpoint


class Starting:
    """How long a run is, and where it begins: the trainer's methods for them."""

    args: Any
    model: Any
    state: Any
    _trial: Any
    _updates_per_epoch: int
    _places_model: bool | None = None
    _goes_on_from: str | None = None  # the folder that is being read

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Moves a model. Where this is overridden, it is called, and the model then trains where it is."""
        model.to(device)

    def _place_as_overridden(self) -> None:
        trainer: Any = self
        if trainer._overrides("_move_model_to_device"):
            if trainer.place_model_on_device:
                self._move_model_to_device(self.model, self.args.device)
            trainer._places_model = False

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """How long training is; an override may change it.

        Args:
            args: the settings.
            dataloader: the training batches of this process.

        Returns:
            Epochs, steps of an epoch, samples of the dataset, samples of the whole training, samples of a step, batches
            of an epoch, steps of the whole training. A loader without a length has an epoch of as many steps.
        """
        trainer: Any = self
        batches = length_of(dataloader)
        samples = trainer.get_total_train_batch_size(args)
        if math.isinf(batches):
            if args.max_steps <= 0:
                raise ConfigError(
                    "The training dataset has no length, so its epochs cannot be counted; write max_steps=..."
                )
            total = args.max_steps * samples
            batches = args.max_steps * args.gradient_accumulation_steps
            return sys.maxsize, args.max_steps, total, total, samples, batches, args.max_steps
        updates = max(1, math.ceil(batches / args.gradient_accumulation_steps))
        examples = trainer.num_examples(dataloader)
        if args.max_steps > 0:
            steps, epochs = args.max_steps, math.ceil(args.max_steps / updates)
            total = args.max_steps * samples
        else:
            steps, epochs = math.ceil(args.num_train_epochs * updates), math.ceil(args.num_train_epochs)
            total = examples * args.num_train_epochs
        return epochs, updates, examples, total, samples, int(batches), steps

    def _count_steps(self, loader: Any) -> float:
        """Notes how many steps and epochs there are, and every how many steps something is due; returns the samples."""
        trainer: Any = self
        args = self.args
        run = trainer._new_state()
        epochs, updates, _, samples, _, batches, steps = self.set_initial_training_values(args, loader)
        endless = math.isinf(length_of(loader))
        self._updates_per_epoch = 0 if endless else updates
        run.max_steps, run.num_train_epochs = steps, epochs
        self._batches_per_epoch = math.inf if endless else batches
        self._window_size = args.gradient_accumulation_steps
        for name in ("logging_steps", "eval_steps", "save_steps"):
            every = getattr(args, name)
            if every is not None:
                setattr(run, name, max(1, math.ceil(run.max_steps * every)) if every < 1 else int(every))
        run.epoch = 0
        trial = self._trial
        run.is_hyper_param_search = trial is not None
        if trial is not None:
            run.trial_name = trainer.hp_name(trial) if trainer.hp_name is not None else None
            run.trial_params = dict(trial if isinstance(trial, dict) else getattr(trial, "params", {}))
        self.state = run
        return float(samples)

    def _logs_after(self, step: int, last_of_epoch: bool) -> bool:
        """Whether the arguments have the step logged that is about to be done."""
        args = self.args
        if args.logging_strategy == "steps":
            return bool(step % self.state.logging_steps == 0 or (step == 1 and args.logging_first_step))
        return bool(args.logging_strategy == "epoch" and last_of_epoch)

    def _folder_to_go_on_from(self, resume: Any) -> str | None:
        trainer: Any = self
        if resume is None or resume is False:
            return None
        if resume is True or resume in ("auto", "True", "true"):
            where = trainer._get_output_dir(self._trial)
            folder = collectives.on_rank_zero(lambda: get_last_checkpoint(where))
            if folder is None:
                info(f"There is no checkpoint in {where!r} to go on from: training starts.")
            return folder
        path = os.path.expanduser(os.fspath(resume))
        if not os.path.isdir(path):
            raise CheckpointNotFoundError(f"resume_from_checkpoint={path!r}: there is no such folder.{beside(path)}")
        return path

    def _take_state(self, folder: str) -> None:
        """Takes over the record of a checkpoint; what the arguments say now holds, and what changed is told."""
        path = os.path.join(folder, "trainer_state.json")
        if not os.path.isfile(path):
            return  # what is wrong with the folder is told when it is read
        trainer: Any = self
        saved, run = state.read_state(path), self.state
        now = {name: getattr(run, name) for name in ("logging_steps", "eval_steps", "save_steps", "max_steps")}
        changed = [
            f"{name} {saved[name]} -> {value}" for name, value in now.items()
            if saved.get(name) is not None and saved[name] != value and self._matters(name)
        ]  # fmt: skip
        for name in vars(run):
            keep = (*now, "num_train_epochs", "train_batch_size", "is_local_process_zero", "is_world_process_zero")
            if name in saved and name not in (*keep, "stateful_callbacks"):
                setattr(run, name, saved[name])
        best = run.best_model_checkpoint
        if best is not None and not os.path.isdir(best):
            warn(f"The best checkpoint so far, {best!r}, is not there any more; the next best one takes its place.")
            run.best_model_checkpoint = None
        run.stateful_callbacks = saved.get("stateful_callbacks")
        trainer._load_callback_state()
        if changed:
            info(f"Settings that changed since {folder} and hold from here on: {', '.join(changed)}.")

    def _matters(self, name: str) -> bool:
        strategies = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}
        return name not in strategies or getattr(self.args, strategies[name]) == "steps"

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Gives the model, or another one, the weights of a checkpoint's folder. An override reads them its own way."""
        trainer: Any = self
        folder = os.path.expanduser(os.fspath(resume_from_checkpoint))
        model = self.model if model is None else model
        found = weights.matching_keys(weights.read_for(model, folder), model)
        if self.args.deepspeed:
            from bolide.transformers import zero

            zero.put_weights(model, found)
        weights.load(model, trainer._engine.strategy.localized(model, found), folder)

    # ------------------------------------------------------------------ where the model is

    def _validate_args(self) -> None:
        """Nothing: arguments were checked by now. An override may check more, the callbacks too."""

    @property
    def is_model_parallel(self) -> bool:
        """Whether the layers of the model lie on several devices, as its device map says."""
        places = getattr(self.model, "hf_device_map", None) or {}
        return len({str(place) for place in places.values()} - {"cpu", "disk"}) > 1

    @property
    def deepspeed(self) -> Any:
        """DeepSpeed's engine, once it trains; None elsewhere."""
        trainer: Any = self
        strategy: Any = trainer._engine.strategy if self.args.deepspeed and trainer._has_trained else None
        return getattr(strategy, "deepspeed_engine", None)
