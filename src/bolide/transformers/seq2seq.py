"""`Seq2SeqTrainer`: a Trainer whose evaluations generate, where predict_with_generate asks for it.

Who calls: users.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from bolide.core.errors import ConfigError
from bolide.transformers.evaluation import detached
from bolide.transformers.loss import base_of
from bolide.transformers.trainer import Trainer
from bolide.transformers.weights import unwrapped


class Seq2SeqTrainer(Trainer):
    """A Trainer for models that generate. Arguments are those of Trainer, with Seq2SeqTrainingArguments as args."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._gen_kwargs: dict[str, Any] = {}
        config = getattr(self.args, "generation_config", None)
        if config is not None:
            self.model.generation_config = self.load_generation_config(config)

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """A GenerationConfig: as given, or read from a file or folder."""
        if not isinstance(gen_config_arg, (str, os.PathLike)):
            return gen_config_arg
        from transformers import GenerationConfig

        path = os.fspath(gen_config_arg)
        if path.endswith(".json"):
            return GenerationConfig.from_pretrained(os.path.dirname(path), config_file_name=os.path.basename(path))
        return GenerationConfig.from_pretrained(path)

    def _generating(self, gen_kwargs: dict[str, Any]) -> dict[str, Any]:
        args = self.args
        found = dict(gen_kwargs)
        if found.get("max_length") is None and found.get("max_new_tokens") is None:
            if getattr(args, "generation_max_length", None) is not None:
                found["max_length"] = args.generation_max_length
        if found.get("num_beams") is None and getattr(args, "generation_num_beams", None) is not None:
            found["num_beams"] = args.generation_num_beams
        return {name: value for name, value in found.items() if value is not None}

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """As of Trainer; more keywords go to `generate`."""
        several = self._several_datasets(eval_dataset)
        if several is not None:
            found: dict[str, float] = {}
            for name, one in several.items():
                found |= self.evaluate(one, ignore_keys, f"{metric_key_prefix}_{name}", **gen_kwargs)
            return found
        self._gen_kwargs = self._generating(gen_kwargs)
        return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> Any:
        """As of Trainer; more keywords go to `generate`."""
        self._gen_kwargs = self._generating(gen_kwargs)
        return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """One batch: its loss, the generated tokens, the labels."""
        if not getattr(self.args, "predict_with_generate", False) or prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        labels = inputs.get("labels")
        options = gen_kwargs or self._gen_kwargs
        given = {name: value for name, value in inputs.items() if name not in ("labels", "decoder_input_ids")}
        started = inputs.get("decoder_input_ids")
        if started is not None and (labels is None or started.shape != labels.shape):
            given["decoder_input_ids"] = started  # a prefix to go on from, not the labels shifted
        config = unwrapped(model).generation_config
        with torch.no_grad():
            generated = unwrapped(model).generate(**given, **options)
            loss = None
            if labels is not None:
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, inputs, **self._count_for_loss(inputs)).detach().mean()
        length = self._length(config, options)
        generated = self._pad_tensors_to_max_len(generated, length)
        return loss, detached(generated), None if labels is None else self._pad_tensors_to_max_len(labels, length)

    @staticmethod
    def _length(config: Any, options: dict[str, Any]) -> int:
        new = options.get("max_new_tokens", getattr(config, "max_new_tokens", None))
        if "max_length" not in options and new is not None:
            return int(new) + 1
        return int(options.get("max_length") or getattr(config, "max_length", None) or 0)

    def _pad_tensors_to_max_len(self, tensor: Tensor, max_length: int) -> Tensor:
        """Tokens with padding up to `max_length`, so that all batches are of one width."""
        if tensor.shape[-1] >= max_length:
            return tensor
        config = base_of(self.model).config
        tokenizer = getattr(self.processing_class, "tokenizer", self.processing_class)
        pad = getattr(tokenizer, "pad_token_id", None)
        pad = pad if pad is not None else getattr(config, "pad_token_id", None)
        if pad is None:
            raise ConfigError("Generated tokens must be padded, and neither tokenizer nor model has a pad_token_id")
        return nn.functional.pad(tensor, (0, max_length - tensor.shape[-1]), value=pad)
