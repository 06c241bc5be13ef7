"""The words that arguments of the second door choose from, as enumerations that compare equal to their text.

Who reads them: arguments.py, which turns text into them, and user code that writes `IntervalStrategy.STEPS`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from bolide.core.errors import did_you_mean


class Choice(str, Enum):
    """A word out of a fixed set; equal to its text, and to a member of another package with the same text."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def _missing_(cls, value: Any) -> Any:
        words = [str(member.value) for member in cls]
        begins = [word for word in words if word.startswith(str(value))][:1]  # "adam" is of adamw_torch's kind
        hint = f" Did you mean {begins[0]!r}?" if begins else did_you_mean(str(value), words)
        raise ValueError(f"must be one of {', '.join(words)}.{hint}")


class IntervalStrategy(Choice):
    """When something is done in training."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"


class SaveStrategy(Choice):
    """When a checkpoint is written; "best": after an evaluation that gave the best metric so far."""

    NO = "no"
    STEPS = "steps"
    EPOCH = "epoch"
    BEST = "best"


class HubStrategy(Choice):
    """When the model goes to the hub."""

    END = "end"
    EVERY_SAVE = "every_save"
    CHECKPOINT = "checkpoint"
    ALL_CHECKPOINTS = "all_checkpoints"


class SamplingStrategy(Choice):
    """In which order training samples come."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"
    GROUP_BY_LENGTH = "group_by_length"
    BATCH_REBALANCE = "batch_rebalance"


class TokenCounting(Choice):
    """Whether input tokens are counted, and which."""

    NO = "no"
    ALL = "all"
    NON_PADDING = "non_padding"


class SchedulerType(Choice):
    """The learning-rate schedules by name."""

    LINEAR = "linear"
    COSINE = "cosine"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    INVERSE_SQRT = "inverse_sqrt"
    REDUCE_ON_PLATEAU = "reduce_lr_on_plateau"
    COSINE_WITH_MIN_LR = "cosine_with_min_lr"
    COSINE_WARMUP_WITH_MIN_LR = "cosine_warmup_with_min_lr"
    WARMUP_STABLE_DECAY = "warmup_stable_decay"


class OptimizerNames(Choice):
    """The optimizers by name; those that Bolide does not have stand last, and are refused as arguments."""

    ADAMW_TORCH = "adamw_torch"
    ADAMW_TORCH_FUSED = "adamw_torch_fused"
    ADAMW_8BIT = "adamw_8bit"
    ADAMW_BNB = "adamw_bnb_8bit"
    ADAMW_TORCH_4BIT = "adamw_torch_4bit"
    ADAMW_TORCH_8BIT = "adamw_torch_8bit"
    ADEMAMIX = "ademamix"
    ADEMAMIX_8BIT = "ademamix_8bit"
    ADAFACTOR = "adafactor"
    ADAGRAD = "adagrad"
    LION = "lion_32bit"
    LION_8BIT = "lion_8bit"
    PAGED_ADAMW = "paged_adamw_32bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    PAGED_ADEMAMIX = "paged_ademamix_32bit"
    PAGED_ADEMAMIX_8BIT = "paged_ademamix_8bit"
    PAGED_LION = "paged_lion_32bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    RMSPROP = "rmsprop"
    RMSPROP_BNB = "rmsprop_bnb"
    RMSPROP_32BIT = "rmsprop_bnb_32bit"
    RMSPROP_8BIT = "rmsprop_bnb_8bit"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    SCHEDULE_FREE_RADAM = "schedule_free_radam"
    SCHEDULE_FREE_SGD = "schedule_free_sgd"
    SGD = "sgd"
    ADAMW_TORCH_XLA = "adamw_torch_xla"
    ADAMW_TORCH_NPU_FUSED = "adamw_torch_npu_fused"
    ADAMW_ANYPRECISION = "adamw_anyprecision"
    GALORE_ADAMW = "galore_adamw"
    GALORE_ADAMW_8BIT = "galore_adamw_8bit"
    GALORE_ADAFACTOR = "galore_adafactor"
    GALORE_ADAMW_LAYERWISE = "galore_adamw_layerwise"
    GALORE_ADAMW_8BIT_LAYERWISE = "galore_adamw_8bit_layerwise"
    GALORE_ADAFACTOR_LAYERWISE = "galore_adafactor_layerwise"
    LOMO = "lomo"
    ADALOMO = "adalomo"
    GROKADAMW = "grokadamw"
    APOLLO_ADAMW = "apollo_adamw"
    APOLLO_ADAMW_LAYERWISE = "apollo_adamw_layerwise"
    STABLE_ADAMW = "stable_adamw"


NOT_BUILT_OPTIMIZERS = (
    "galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise", "apollo_adamw", "apollo_adamw_layerwise", "lomo", "adalomo", "grokadamw",
    "stable_adamw", "adamw_anyprecision", "adamw_torch_xla", "adamw_torch_npu_fused",
)  # fmt: skip
"""Optimizers that transformers knows by name, and Bolide does not."""


class DebugOption(Choice):
    """What debug= may ask for."""

    UNDERFLOW_OVERFLOW = "underflow_overflow"
    TPU_METRICS_DEBUG = "tpu_metrics_debug"


class FSDPOption(Choice):
    """The words of fsdp=."""

    FULL_SHARD = "full_shard"
    SHARD_GRAD_OP = "shard_grad_op"
    NO_SHARD = "no_shard"
    HYBRID_SHARD = "hybrid_shard"
    HYBRID_SHARD_ZERO2 = "hybrid_shard_zero2"
    OFFLOAD = "offload"
    AUTO_WRAP = "auto_wrap"


class ParallelMode(Choice):
    """How many devices take part, and how; the last four are transformers' own, and never the case."""

    NOT_PARALLEL = "not_parallel"
    DISTRIBUTED = "distributed"
    NOT_DISTRIBUTED = "not_distributed"
    SAGEMAKER_MODEL_PARALLEL = "sagemaker_model_parallel"
    SAGEMAKER_DATA_PARALLEL = "sagemaker_data_parallel"
    TPU = "tpu"


class HPSearchBackend(Choice):
    """What proposes settings in a search."""

    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"


@dataclass
class AcceleratorConfig:
    """How data is split over processes: the settings of accelerator_config=.

    Attributes:
        split_batches: per_device_..._batch_size is the size of all processes together.
        dispatch_batches: the first process alone reads, and sends the others their batches.
        even_batches: not read: a short last round is filled up with batches that count nothing.
        use_seedable_sampler: False: the order of samples is that of torch's RandomSampler.
        non_blocking: not read: batches are copied so where their memory is pinned.
        gradient_accumulation_kwargs: of Accelerate's plugin; "sync_each_batch" exchanges gradients at every batch.
        use_configured_state: not built.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    use_configured_state: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {name: value for name, value in asdict(self).items() if name != "use_configured_state"}

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"
