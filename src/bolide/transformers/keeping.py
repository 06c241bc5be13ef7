"""The part of the trainer that logs, saves and publishes; each method may be overridden.

Who calls: trainer.py, the adapter's bridge when something is due, and users.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from bolide import collectives
from bolide.checkpoint import io
from bolide.core.errors import ConfigError, did_you_mean
from bolide.core.messages import info
from bolide.transformers import hub, ranks, state, weights
from bolide.transformers.folders import PREFIX_CHECKPOINT_DIR, TRAINER_STATE_NAME, rotate
from bolide.transformers.loss import base_of, call, can_be_given
from bolide.transformers.optimizers import averaged


class Keeping:
    """Logging, saving, publishing: the trainer's methods for them."""

    args: Any
    model: Any
    state: Any
    control: Any
    _losses: Any
    processing_class: Any
    data_collator: Any
    callback_handler: Any
    lr_scheduler: Any
    current_flos: float
    hp_name: Any
    hub_model_id: str | None
    _trial: Any
    _globalstep_last_logged = 0
    _total_loss_scalar = 0.0
    _flos_per_token: float | None
    _pushes: list[Any]
    _started_s: float | None = None
    _newest_checkpoint: str | None = None
    _report: Callable[[Mapping[str, float], int], None] | None = None
    _tokens_of_step = 0
    _ignore_keys_for_eval: list[str] | None = None

    # ------------------------------------------------------------------ callbacks and processes

    def add_callback(self, callback: Any) -> None:
        """Adds a callback, or one of a class."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Removes a callback, named by itself or its class, and returns it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Removes a callback, named by itself or its class."""
        self.callback_handler.pop_callback(callback)

    def end(self) -> None:
        """Lets go of what a run holds: engine, optimizer, cached device memory. The model stays."""
        trainer: Any = self
        trainer._made_engine = trainer._made_adapter = trainer._engine_loader = None
        trainer.optimizer = self.lr_scheduler = None
        trainer.accelerator.free_memory()

    def _load_callback_state(self) -> None:
        """Gives callbacks back what the record of the run has kept of them."""
        state.imported(list(self.callback_handler.callbacks), self.state.stateful_callbacks)

    def is_local_process_zero(self) -> bool:
        """Whether this is the first process of its machine."""
        return bool(self.args.local_process_index == 0)

    def is_world_process_zero(self) -> bool:
        """Whether this is the first process."""
        return bool(self.args.process_index == 0)

    # ------------------------------------------------------------------ what callbacks asked for

    def _act(self) -> None:
        """Logs, evaluates and saves, in this order, where the control says so; an override has its own way."""
        trainer: Any = self
        record = self._losses
        if not trainer._acts_itself:
            self._maybe_log_save_evaluate()
            return
        given = (
            torch.tensor(record.sum_now()), record.norm, trainer.model_wrapped, self._trial, self.state.epoch,
            self._ignore_keys_for_eval, self._started_s,
        )  # fmt: skip
        own = self._maybe_log_save_evaluate
        if can_be_given(own, *given, learning_rate=record.lr):
            own(*given, learning_rate=record.lr)
        else:  # as releases 4.x had it
            call(own, *given)
        if record.pending and not given[0]:  # it has logged the losses itself, and set them back
            record.take()

    def _maybe_log_save_evaluate(
        self,
        tr_loss: Any = None,
        grad_norm: Any = None,
        model: Any = None,
        trial: Any = None,
        epoch: float | None = None,
        ignore_keys_for_eval: list[str] | None = None,
        start_time: float | None = None,
        learning_rate: float | None = None,
    ) -> None:
        """Logs, evaluates and saves, where the control says so. An override is called after each step and epoch.

        Args:
            tr_loss: the sum of the losses since the last log line.
            grad_norm: the norm of the last gradients, before they were clipped.
            model: what trains.
            trial: of a search.
            epoch: epochs done.
            ignore_keys_for_eval: outputs of the model that an evaluation leaves out.
            start_time: when training began, in seconds since 1970.
            learning_rate: of the last step.
        """
        trainer: Any = self
        if self.control.should_log:
            self._log_training()
        metrics = None
        if self.control.should_evaluate:
            metrics = self._evaluate(self._trial, self._ignore_keys_for_eval)
            better = self._determine_best_metric(metrics, self._trial)
            if self.args.save_strategy == "best":
                self.control.should_save = better
        if self.control.should_save:
            self._save_now()
        if metrics is not None:
            trainer.model_wrapped.train()
        if trainer._several:  # what callbacks asked for meanwhile
            ranks.agree(self, "the end of an evaluation or a save")

    def _log_training(self) -> None:
        trainer: Any = self
        record = self._losses
        loss, bad = record.take()
        if loss is None:
            return
        logs: dict[str, float] = {"loss": loss}
        if record.norm is not None:
            logs["grad_norm"] = float(record.norm)
        elif self.args.deepspeed:  # it has the norm once it has stepped
            norm = trainer._engine.strategy.deepspeed_engine.get_global_grad_norm()
            if norm is not None:
                logs["grad_norm"] = float(norm)
        logs["learning_rate"] = float(record.lr)
        if bad:
            logs["non_finite_losses"] = bad
        self.store_flos()
        self._globalstep_last_logged = self.state.global_step
        call(self.log, logs, self._started_s)

    def _get_learning_rate(self) -> float:
        """The rate of the step that is about to be done; an override is asked before each of them."""
        trainer: Any = self
        return float(trainer.optimizer.param_groups[0]["lr"])

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """An evaluation within training; a schedule that looks at a metric looks now."""
        trainer: Any = self
        metrics: dict[str, float] = trainer.evaluate(ignore_keys=ignore_keys_for_eval)
        if not skip_scheduler and not trainer._steps_scheduler:
            self.lr_scheduler.step(self._watched(metrics))
        if self._report is not None:  # a search compares these, and no evaluation of the script's own
            self._report(metrics, self.state.global_step)
        return metrics

    def _watched(self, metrics: Mapping[str, float]) -> float:
        """The metric that the best model is told by.

        Raises:
            ConfigError: the evaluation did not give it.
        """
        name = self.args.metric_for_best_model or "loss"
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name not in metrics:
            raise ConfigError(
                f"metric_for_best_model={self.args.metric_for_best_model!r}: the evaluation gave no {name!r}, but "
                f"{', '.join(metrics)}." + did_you_mean(name, metrics)
            )
        return float(metrics[name])

    def _determine_best_metric(self, metrics: Mapping[str, float], trial: Any) -> bool:
        """Notes the metric where it is the best so far; whether it is."""
        args, run = self.args, self.state
        if args.metric_for_best_model is None:
            return False
        value = self._watched(metrics)
        best = run.best_metric
        better = (best is None or (value > best if args.greater_is_better else value < best)) and not math.isnan(value)
        if better:
            run.best_metric = value
            run.best_global_step = run.global_step
        return better

    # ------------------------------------------------------------------ logging

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the epoch, keeps the line in the record, and tells callbacks."""
        run = self.state
        if run.epoch is not None:
            logs["epoch"] = run.epoch
        if self.args.include_num_input_tokens_seen != "no":
            logs["num_input_tokens_seen"] = run.num_input_tokens_seen
            if start_time is not None:
                seconds = time.time() - start_time
                logs["train_runtime"] = round(seconds, 4)
                logs["train_tokens_per_second"] = round(run.num_input_tokens_seen / max(seconds, 1e-9), 3)
        run.log_history.append({**logs, "step": run.global_step})
        trainer: Any = self
        self.control.should_log = False
        trainer._tell("on_log", logs=logs)

    def _count_work(self, inputs: Any) -> None:
        """Adds a batch's floating-point operations and tokens."""
        trainer: Any = self
        self.current_flos += self.floating_point_ops(inputs)
        if self.args.include_num_input_tokens_seen != "no":
            self._track_num_input_tokens(inputs)
            if not trainer._several:
                self._share_tokens()

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Counts the tokens of a batch."""
        tokens = inputs.get(getattr(base_of(self.model), "main_input_name", None) or "input_ids")
        asked = self.args.include_num_input_tokens_seen
        if asked == "non_padding" and inputs.get("attention_mask") is not None:
            self._tokens_of_step += int(inputs["attention_mask"].sum())
        elif isinstance(tokens, torch.Tensor):
            self._tokens_of_step += tokens.numel()

    def _share_tokens(self) -> None:
        """Adds the tokens of a batch, or those of all processes in a step, to the record."""
        if self.args.include_num_input_tokens_seen != "no":
            self.state.num_input_tokens_seen += int(ranks.summed(self, self._tokens_of_step))
            self._tokens_of_step = 0

    def floating_point_ops(self, inputs: Any) -> float:
        """Operations of a batch, forward and backward: 6 for each token and parameter; 0 for a plain module."""
        base = base_of(self.model)
        if not counts_parameters(base) or not isinstance(inputs, Mapping):
            return 0
        if self._flos_per_token is None:
            count = getattr(self.model, "num_parameters", base.num_parameters)
            self._flos_per_token = 6.0 * count(exclude_embeddings=True)
        tokens = inputs.get(base.main_input_name)
        return self._flos_per_token * tokens.numel() if isinstance(tokens, torch.Tensor) else 0

    def store_flos(self) -> None:
        """Adds what all processes have counted to the record; all must call it."""
        self.state.total_flos += ranks.summed(self, self.current_flos)
        self.current_flos = 0

    @staticmethod
    def metrics_format(metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics as a table shows them."""
        found: dict[str, Any] = {}
        for name, value in metrics.items():
            if name.endswith("_runtime"):
                whole = int(value)
                hundredths = int((value - whole) * 100)
                found[name] = f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}.{hundredths:02}"
            elif "_mem_" in name:
                found[name] = f"{value >> 20}MB"
            elif name == "total_flos":
                found[name] = f"{int(value) >> 30}GF"
            else:
                found[name] = round(value, 4) if isinstance(value, float) else value
        return found

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Prints metrics as a table, on the first process."""
        if not self.is_world_process_zero():
            return
        shown = self.metrics_format(metrics)
        width = max(map(len, shown), default=0)
        print(f"***** {split} metrics *****")
        for name in sorted(shown):
            print(f"  {name:<{width}} = {shown[name]!s:>12}")

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Writes metrics to <split>_results.json, and adds them to all_results.json."""
        if not self.is_world_process_zero():
            return
        _write_json(os.path.join(self.args.output_dir, f"{split}_results.json"), dict(metrics))
        if combined:
            path = os.path.join(self.args.output_dir, "all_results.json")
            known = json.loads(io.read_bytes(path)) if os.path.isfile(path) else {}
            _write_json(path, known | dict(metrics))

    # ------------------------------------------------------------------ saving

    def _get_output_dir(self, trial: Any) -> str:
        """Where checkpoints go: output_dir, or the trial's folder in it."""
        if trial is None:
            return str(self.args.output_dir)
        if self.hp_name is not None:
            return os.path.join(self.args.output_dir, self.hp_name(trial))
        return os.path.join(self.args.output_dir, f"run-{getattr(trial, 'number', 0)}")

    def _folder_of(self, step: int) -> str:
        """The checkpoint folder of a step."""
        return os.path.join(self._get_output_dir(self._trial), f"{PREFIX_CHECKPOINT_DIR}-{step}")

    def _save_now(self) -> str:
        """Saves a checkpoint, tells callbacks, removes what is too much; returns its folder."""
        trainer: Any = self
        with averaged(trainer.optimizer):
            self._save_checkpoint(trainer.model, self._trial)
            folder = self._folder_of(self.state.global_step)
            self.control.should_save = False
            trainer._tell("on_save")
        if self.args.push_to_hub:
            self._push_from_checkpoint(folder)
        return folder

    def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> str:
        """Writes a checkpoint's folder, and removes what is too much. An override may write more into it.

        Args:
            model: the one that trains.
            trial: of a search.
            metrics: not read; releases 4.x had it.
        """
        trainer: Any = self
        run, args = self.state, self.args
        folder = self._folder_of(run.global_step)
        if run.best_global_step:
            best = self._folder_of(run.best_global_step)
            if run.best_global_step == run.global_step or os.path.isdir(best):
                run.best_model_checkpoint = best
        run.stateful_callbacks = state.exported(list(self.callback_handler.callbacks), self.control)
        self.store_flos()
        if not (args.should_save or trainer._several):
            return folder
        # all processes hand in their state, and the first one writes
        trainer._engine.save_checkpoint(folder, weights_only=args.save_only_model)
        self._newest_checkpoint = folder
        if args.should_save:
            rotate(self._get_output_dir(trial), args.save_total_limit, run.best_model_checkpoint, run.global_step)
        collectives.barrier()  # nobody looks for a folder that is on its way
        return folder

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the model, its configuration and the tokenizer into a folder: what `from_pretrained` reads.

        All processes must call it where the model is sharded.
        """
        folder = output_dir if output_dir is not None else self.args.output_dir
        trainer: Any = self
        if self.args.shards_model:
            whole = trainer.accelerator.get_state_dict(self.model)
            if self.args.should_save:
                self._save(folder, whole)
        elif self.args.should_save:
            with averaged(trainer.optimizer):
                self._save(folder)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")

    def _save_model_into(self, folder: str) -> None:
        """Writes the model into a checkpoint: as an overridden `save_model` does, where there is one."""
        trainer: Any = self
        if not trainer._overrides("save_model"):
            self._save(folder)
        else:
            call(self.save_model, folder, True)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        folder = output_dir if output_dir is not None else self.args.output_dir
        io.make_dirs(folder)
        weights.write(self.model, folder, state_dict)
        processing = self.processing_class
        if processing is None:
            processing = getattr(self.data_collator, "tokenizer", None)
        if callable(getattr(processing, "save_pretrained", None)):
            processing.save_pretrained(folder)

    def save_state(self) -> None:
        """Writes the record of the run into output_dir."""
        if self.is_world_process_zero():
            state.save_state(self.state, os.path.join(self.args.output_dir, TRAINER_STATE_NAME))

    def _load_best_model(self) -> None:
        folder = self.state.best_model_checkpoint
        info(f"The weights are those of {folder}, the best checkpoint ({self.state.best_metric}).")
        trainer: Any = self
        trainer._load_from_checkpoint(folder)

    # ------------------------------------------------------------------ the hub

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the repository, where it is not there."""
        if self.is_world_process_zero():
            hub.make_repository(self, token, private)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Uploads what was saved just now, as hub_strategy says."""
        hub.push_on_save(self, checkpoint_folder)

    def _finish_current_push(self) -> None:
        """Waits for the uploads that run in the background; their errors are raised here."""
        while self._pushes:
            self._pushes.pop(0).result()

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Writes README.md with what is known of the run, and what is given."""
        if self.is_world_process_zero():
            hub.write_card(self, {
                "language": language, "license": license, "tags": tags, "model_name": model_name,
                "finetuned_from": finetuned_from, "tasks": tasks, "dataset_tags": dataset_tags, "dataset": dataset,
                "dataset_args": dataset_args,
            })  # fmt: skip

    def push_to_hub(
        self, commit_message: str | None = "End of training", blocking: bool = True, token: str | None = None,
        revision: str | None = None, private: bool | None = None, **facts: Any,
    ) -> Any:  # fmt: skip
        """Writes the model into output_dir and uploads it; needs huggingface_hub.

        Args:
            commit_message: of the commit.
            blocking: False: uploads in the background; the result is a future.
            token: in the place of hub_token.
            revision: in the place of hub_revision.
            private: in the place of hub_private_repo, where the repository is made by this call.
            facts: for the model card.
        """
        trainer: Any = self
        if not self.is_world_process_zero():
            return None
        self.save_model(_internal_call=True)
        trainer._tell("on_push_begin")
        self.create_model_card(**facts)
        pushed = hub.push(self, self.args.output_dir, commit_message, blocking, token, revision, private)
        if not blocking:
            self._pushes.append(pushed)
        return pushed


def counts_parameters(base: Any) -> bool:
    """Whether a model knows how many parameters it has, and what its main input is: one of transformers."""
    return callable(getattr(base, "num_parameters", None)) and isinstance(getattr(base, "main_input_name", None), str)


def _write_json(path: str, content: dict[str, Any]) -> None:
    data = json.dumps(content, indent=4, sort_keys=True, default=str).encode() + b"\n"
    io.write_atomically(path, lambda file: file.write(data))
