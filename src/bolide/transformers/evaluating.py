"""The part of the trainer that evaluates and predicts; each method may be overridden.

One batch is `prediction_step`; the engine's prediction runs it over a loader, and what it gives is collected in
bounded memory. Who calls: trainer.py, users, and the adapter for each batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bolide.core.errors import ConfigError
from bolide.core.messages import warn_once
from bolide.transformers import ranks
from bolide.transformers.evaluation import (
    Collected,
    MeanLoss,
    Rows,
    batch_size_of,
    detached,
    is_array,
    mapped,
    numbers,
)
from bolide.transformers.loss import base_of
from bolide.transformers.optimizers import averaged
from bolide.transformers.state import EvalLoopOutput, EvalPrediction, PredictionOutput
from bolide.transformers.utilities import speed_metrics


class Pass:
    """What one evaluation has collected so far."""

    def __init__(
        self, args: Any, model: Any, loss_only: bool, ignore_keys: list[str] | None, wants_losses: bool
    ) -> None:
        join, self.model = args.eval_do_concat_batches, model
        self.loss_only, self.ignore_keys = loss_only, ignore_keys
        self.loss = MeanLoss()
        if wants_losses:
            self.loss.losses = Rows()
        self.predictions, self.labels, self.inputs = Collected(join), Collected(join), Collected(join)
        self.samples = 0
        self.metrics: dict[str, Any] = {}
        self.batches: float = 0
        self.loader: Any = None
        self.last: Any = None


class Evaluating:
    """Evaluation and prediction: the trainer's methods for them."""

    args: Any
    model: Any
    state: Any
    control: Any
    eval_dataset: Any
    label_names: list[str]
    can_return_loss: bool
    compute_metrics: Any
    preprocess_logits_for_metrics: Any
    _running_pass: Pass | None = None
    _evaluated_at: int | None = None
    _preparation_s: float | None = None  # where an evaluation has made the engine

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluates; returns the metrics, which are logged, too.

        Args:
            eval_dataset: another dataset than the trainer's, the name of one of several, or several by name.
            ignore_keys: outputs of the model to leave out.
            metric_key_prefix: put before each metric's name.
        """
        trainer: Any = self
        trainer._memory.start("eval")
        given = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(given, Mapping):
            found: dict[str, float] = {}
            for name, one in given.items():
                found |= self.evaluate(
                    one if eval_dataset is not None else name, ignore_keys, f"{metric_key_prefix}_{name}"
                )
            return found
        loader = self.get_eval_dataloader(given)  # type: ignore[attr-defined]
        trainer._tell_callbacks_of(eval_dataloader=loader)
        started_s = time.time()
        output = self.evaluation_loop(
            loader, description="Evaluation", prediction_loss_only=True if self.compute_metrics is None else None,
            ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix,
        )  # fmt: skip
        metrics = ranks.of_first(self.args, self._with_speed(output, metric_key_prefix, started_s))
        trainer.log(metrics)
        self.control.should_evaluate = False
        trainer._tell("on_evaluate", metrics=metrics)
        return metrics | trainer._memory.stop("eval")

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions, labels and metrics of a dataset; nothing is logged."""
        trainer: Any = self
        trainer._memory.start("test")
        loader = trainer.get_test_dataloader(test_dataset)
        trainer._tell_callbacks_of(eval_dataloader=loader)
        started_s = time.time()
        output = self.evaluation_loop(
            loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=metric_key_prefix
        )
        metrics = ranks.of_first(self.args, self._with_speed(output, metric_key_prefix, started_s))
        trainer._tell("on_predict", metrics=metrics)
        return PredictionOutput(output.predictions, output.label_ids, metrics | trainer._memory.stop("test"))

    def _with_speed(self, output: EvalLoopOutput, prefix: str, started_s: float) -> dict[str, Any]:
        metrics = dict(output.metrics or {})
        samples = output.num_samples or 0
        size = self.args.eval_batch_size * self.args.world_size
        return metrics | speed_metrics(prefix, started_s, samples, -(-samples // size))

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """One pass over a loader, and its metrics: on each process those of all samples."""
        trainer: Any = self
        args = self.args
        dataloader = ranks.over_ranks(dataloader, args, training=False)
        loss_only = prediction_loss_only if prediction_loss_only is not None else args.prediction_loss_only
        if trainer._made_engine is None:
            began_s, _ = time.time(), trainer._engine
            self._preparation_s = round(time.time() - began_s, 4)
        if not trainer.is_in_train and (args.fp16_full_eval or args.bf16_full_eval):
            self.model.to(torch.float16 if args.fp16_full_eval else torch.bfloat16)
        outer = self._running_pass
        adapter = trainer._adapter_to_evaluate()
        wants_losses = "loss" in args.include_for_metrics
        collected = self._running_pass = Pass(args, adapter.model, loss_only, ignore_keys, wants_losses)
        collected.loader = dataloader
        try:
            with torch.no_grad(), averaged(trainer.optimizer):
                trainer._engine.predict(adapter, dataloader, return_predictions=False)
            if collected.last is not None:
                self._metrics_of_batch(collected, collected.last, final=True)
        finally:
            self._running_pass = outer
        adapter.model.eval()  # scripts tell by it what is logged; training goes on in train mode
        self._evaluated_at = self.state.global_step
        loss = collected.loss.result()
        metrics = {} if loss is None else {"loss": loss}
        metrics |= numbers(self._metrics_of_pass(collected))
        if self._preparation_s is not None:
            metrics["model_preparation_time"] = self._preparation_s
        metrics = {
            name if name.startswith(f"{metric_key_prefix}_") else f"{metric_key_prefix}_{name}": value
            for name, value in metrics.items()
        }
        if args.batch_eval_metrics:
            return EvalLoopOutput(None, None, metrics, collected.samples)
        return EvalLoopOutput(collected.predictions.result(), collected.labels.result(), metrics, collected.samples)

    def _collect(self, inputs: Any) -> None:
        """One batch of the running evaluation: the engine's prediction step."""
        trainer: Any = self
        collected = self._running_pass
        assert collected is not None
        size = batch_size_of(inputs) or self.args.per_device_eval_batch_size
        loss, logits, labels = self.prediction_step(
            collected.model, inputs, collected.loss_only, ignore_keys=collected.ignore_keys
        )
        if logits is not None and self.preprocess_logits_for_metrics is not None:
            logits = self.preprocess_logits_for_metrics(logits, labels)
        found = (size, loss, logits, labels, self._inputs_kept(inputs))
        for one in ranks.in_order(found) if trainer._several else (found,):
            self._take_in(collected, *one)
        if trainer.callback_handler.listeners("on_prediction_step"):
            trainer._tell("on_prediction_step")

    def _take_in(self, collected: Pass, size: int, loss: Any, logits: Any, labels: Any, kept: Any) -> None:
        """Takes in one batch, of this process or another."""
        collected.samples += size
        collected.loss.add(loss, size)
        if self.args.batch_eval_metrics and self.compute_metrics is not None:
            if collected.last is not None:
                self._metrics_of_batch(collected, collected.last, final=False)
            collected.last = (logits, labels, kept, loss)
        else:
            collected.predictions.add(logits)
            collected.labels.add(labels)
            collected.inputs.add(kept)

    def _inputs_kept(self, inputs: Any) -> Any:
        if "inputs" not in self.args.include_for_metrics or not isinstance(inputs, Mapping):
            return None
        name = getattr(base_of(self.model), "main_input_name", None) or "input_ids"
        return inputs.get(name)

    def _metrics_of_batch(self, collected: Pass, batch: Any, final: bool) -> None:
        logits, labels, kept, loss = batch
        if logits is None or labels is None:
            return
        prediction = EvalPrediction(
            predictions=logits, label_ids=labels, **_given(inputs=kept),
            **_given(losses=loss if "loss" in self.args.include_for_metrics else None),
        )  # fmt: skip
        found = self.compute_metrics(prediction, compute_result=final)
        if final:
            collected.metrics = dict(found)

    def _metrics_of_pass(self, collected: Pass) -> dict[str, Any]:
        if self.args.batch_eval_metrics or self.compute_metrics is None or collected.loss_only:
            return dict(collected.metrics)
        predictions, labels = collected.predictions.result(), collected.labels.result()
        if predictions is None or labels is None:
            if collected.samples:
                warn_once(
                    "compute_metrics was not called, as the batches hold no labels: this trainer looks for "
                    f"{', '.join(self.label_names) or 'none'}. Write TrainingArguments(label_names=[...])."
                )
            return {}
        losses = collected.loss.losses
        prediction = EvalPrediction(
            predictions=predictions, label_ids=labels, **_given(inputs=collected.inputs.result()),
            **_given(losses=losses.joined() if losses is not None and losses.shapes else None),
        )  # fmt: skip
        found = self.compute_metrics(prediction)
        if not isinstance(found, Mapping):
            raise ConfigError(f"compute_metrics returned a {type(found).__name__}; return a dictionary of numbers")
        return dict(found)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Any, Any]:
        """One batch without gradients: its loss, what the model gave beside it, the labels; None where not there."""
        trainer: Any = self
        names = self.label_names
        has_labels = bool(names) and all(inputs.get(name) is not None for name in names)
        asked = inputs.get("return_loss")
        without_labels = not names and (self.can_return_loss if asked is None else bool(asked))
        inputs = trainer._prepare_inputs(inputs)
        if ignore_keys is None:
            config = getattr(base_of(self.model), "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", None) or [])
        labels: Any = None
        if has_labels:
            labels = tuple(mapped(inputs[name], detached) for name in names)
            labels = labels[0] if len(labels) == 1 else labels
        loss = None
        with torch.no_grad():
            if has_labels or without_labels:
                count = {}
                if trainer._passes_count:  # a loss that divides by it does so here, too
                    count["num_items_in_batch"] = trainer._get_num_items_in_batch([inputs], self.args.device)
                with trainer.compute_loss_context_manager():
                    loss, outputs = trainer.compute_loss(model, inputs, return_outputs=True, **count)
                rest = self._beside_loss(loss, outputs)
                loss = loss.detach().mean()
                ignore = [*ignore_keys, "loss"]
            else:
                with trainer.compute_loss_context_manager():
                    outputs = model(**inputs)
                ignore = ignore_keys
                rest = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if prediction_loss_only:
            return loss, None, None
        if isinstance(outputs, Mapping):
            rest = tuple(value for name, value in outputs.items() if name not in ignore)
        logits = mapped(tuple(value for value in rest if is_array(value)), detached)
        return loss, logits[0] if len(logits) == 1 else (logits or None), labels

    def _beside_loss(self, loss: Tensor, outputs: Any) -> Any:
        """What a model gave that is no mapping, without the loss: a tuple begins with it where the model had labels."""
        trainer: Any = self
        if not isinstance(outputs, (tuple, list)):
            return () if outputs is loss else (outputs,)
        withheld = trainer.label_smoother is not None or trainer.compute_loss_func is not None
        first = outputs[0] if outputs else None
        return outputs if withheld and isinstance(first, Tensor) and first.dim() else outputs[1:]


def _given(**values: Any) -> dict[str, Any]:
    """The keyword arguments that are not None: EvalPrediction unpacks into as many as it was given."""
    return {name: value for name, value in values.items() if value is not None}
