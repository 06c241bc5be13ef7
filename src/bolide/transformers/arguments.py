"""`TrainingArguments`: what a run of the second door is asked for, one dataclass, checked as a whole.

Owns the fields, their defaults and what is derived from them. Old spellings are translated by compat/hf_args before
the dataclass sees them; rules.py says what is wrong. Who reads it: the trainer and everything around it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch

from bolide import collectives
from bolide.compat.hf_args import translated
from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.launch.detect import detect
from bolide.transformers import rules
from bolide.transformers.choices import (
    AcceleratorConfig,
    HubStrategy,
    IntervalStrategy,
    OptimizerNames,
    ParallelMode,
    SamplingStrategy,
    SaveStrategy,
    SchedulerType,
    TokenCounting,
)


def told(help_text: str, default: Any = None) -> Any:
    """A field with its default and the text that a command line shows for it."""
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": help_text})
    return field(default=default, metadata={"help": help_text})


class AcceptsOldNames(type):
    """Translates old spellings before a dataclass, or one derived from it, sees its arguments."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        known = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]
        kwargs, wrong = translated(kwargs, known, cls.__name__)
        try:
            made = super().__call__(*args, **kwargs)
        except ConfigError as error:
            raise ConfigError([*wrong, *error.problems]) from None
        if wrong:
            raise ConfigError(wrong)
        return made


@dataclass
class TrainingArguments(metaclass=AcceptsOldNames):
    """What to train for how long, how, and what to write where. Every mistake is told at construction, all at once.

    Names of older releases (`evaluation_strategy`, `warmup_ratio`, `no_cuda`, ...) are accepted, with one warning
    that says the new spelling.

    Raises:
        ConfigError: lists every setting that is wrong or contradicts another.

    Example::

        args = TrainingArguments("out", num_train_epochs=3, eval_strategy="epoch", learning_rate=2e-5)
    """

    output_dir: str | None = told("Where checkpoints and results go; 'trainer_output' where not given.")
    # what is trained, and for how long
    num_train_epochs: float = told("Epochs; may be fractional.", 3.0)
    max_steps: int = told("Optimizer steps; more than 0 overrules num_train_epochs.", -1)
    per_device_train_batch_size: int = told("Training samples a batch and device.", 8)
    per_device_eval_batch_size: int = told("Evaluation samples a batch and device.", 8)
    auto_find_batch_size: bool = told("Starts again with a smaller batch when memory does not suffice.", False)
    # optimizer and schedule
    learning_rate: float = told("The learning rate at its highest.", 5e-5)
    weight_decay: float = told("Decoupled weight decay; biases and norms are left out.", 0.0)
    adam_beta1: float = told("Beta 1 of Adam.", 0.9)
    adam_beta2: float = told("Beta 2 of Adam.", 0.999)
    adam_epsilon: float = told("Epsilon of Adam.", 1e-8)
    max_grad_norm: float | None = told("Gradients are clipped to this norm; 0 turns that off.", 1.0)
    optim: OptimizerNames | str = told("The optimizer by name.", "adamw_torch_fused")
    optim_args: str | None = told("More arguments of the optimizer: 'name=value,name=value'.")
    optim_target_modules: None | str | list[str] = told("Not built: for GaLore and APOLLO.")
    lr_scheduler_type: SchedulerType | str = told("The learning-rate schedule by name.", "linear")
    lr_scheduler_kwargs: dict[str, Any] | str | None = told("More arguments of the schedule.")
    warmup_steps: float = told("Steps of warm-up; below 1, the share of all steps.", 0)
    # accumulation, loss
    gradient_accumulation_steps: int = told("Batches to one optimizer step.", 1)
    average_tokens_across_devices: bool = told("Losses are averaged over the tokens of all devices.", True)
    label_smoothing_factor: float = told("Label smoothing of the loss.", 0.0)
    neftune_noise_alpha: float | None = told("Noise on the embeddings while training (NEFTune).")
    # precision and compilation
    fp16: bool = told("float16 mixed precision.", False)
    bf16: bool = told("bfloat16 mixed precision.", False)
    fp16_full_eval: bool = told("Evaluates in float16.", False)
    bf16_full_eval: bool = told("Evaluates in bfloat16.", False)
    tf32: bool | None = told("TF32 in matrix products on or off.")
    torch_compile: bool = told("Compiles the model.", False)
    torch_compile_backend: str | None = told("The backend to compile with.")
    torch_compile_mode: str | None = told("The mode to compile in.")
    use_liger_kernel: bool = told("Not built: Liger kernels.", False)
    liger_kernel_config: dict[str, bool] | None = told("Not built: Liger kernels.")
    use_cache: bool = told("Sets model.config.use_cache.", False)
    torch_empty_cache_steps: int | None = told("Empties the device's cache every so many steps.")
    # activation checkpointing
    activation_checkpointing: bool | None = told("Recomputes activations in the backward pass.")
    activation_checkpointing_kwargs: dict[str, Any] | str | None = told("Arguments of activation checkpointing.")
    gradient_checkpointing: bool | None = told("The usual name of activation_checkpointing.")
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = told("The usual name of its arguments.")
    # logging
    logging_strategy: IntervalStrategy | str = told("When to log: no, steps or epoch.", "steps")
    logging_steps: float = told("Log every so many steps, or this share of all.", 500)
    logging_first_step: bool = told("Logs the first step, too.", False)
    logging_nan_inf_filter: bool = told("Leaves NaN and infinite losses out of the logged mean.", True)
    include_num_input_tokens_seen: TokenCounting | str | bool = told("Counts input tokens.", "no")
    report_to: None | str | list[str] = told("Trackers: names, 'all' or 'none'.", "none")
    run_name: str | None = told("The run's name in trackers.")
    project: str = told("The project in Trackio.", "huggingface")
    trackio_space_id: str | None = told("The Trackio Space.")
    trackio_bucket_id: str | None = told("The Trackio bucket.")
    trackio_static_space_id: str | None = told("The static Trackio Space.")
    logging_dir: str | None = told("Where TensorBoard writes (a name of 4.x, kept).")
    log_level: str = told("How much the main process says.", "passive")
    log_level_replica: str = told("How much the other processes say.", "warning")
    log_on_each_node: bool = told("Whether each machine logs.", True)
    disable_tqdm: bool | None = told("No progress bar; log lines are printed then.")
    # evaluation
    eval_strategy: IntervalStrategy | str = told("When to evaluate: no, steps or epoch.", "no")
    eval_steps: float | None = told("Evaluate every so many steps, or this share of all.")
    eval_delay: float = told("No evaluation before this step or epoch.", 0)
    eval_on_start: bool = told("Evaluates once before the first step.", False)
    prediction_loss_only: bool = told("Keeps no predictions in an evaluation.", False)
    eval_accumulation_steps: int | None = told("Accepted: predictions leave the device at every batch.")
    eval_do_concat_batches: bool = told("Joins the predictions of all batches.", True)
    eval_use_gather_object: bool = told("Accepted: what processes predict is gathered as objects.", False)
    include_for_metrics: list[str] = told("Gives compute_metrics 'inputs' or 'loss', too.", [])
    batch_eval_metrics: bool = told("Calls compute_metrics for each batch.", False)
    load_best_model_at_end: bool = told("Ends with the weights of the best checkpoint.", False)
    metric_for_best_model: str | None = told("The metric by which checkpoints are compared.")
    greater_is_better: bool | None = told("Whether more of it is better.")
    # checkpoints
    save_strategy: SaveStrategy | str = told("When to save: no, steps, epoch or best.", "steps")
    save_steps: float = told("Save every so many steps, or this share of all.", 500)
    save_total_limit: int | None = told("Keeps at most so many checkpoints.")
    save_only_model: bool = told("Saves weights only: no resume.", False)
    save_on_each_node: bool = told("Saves on each machine.", False)
    enable_jit_checkpoint: bool = told("Saves on SIGTERM; Bolide does so always where it saves at all.", False)
    resume_from_checkpoint: str | None = told("For scripts, which hand it to train().")
    ignore_data_skip: bool = told("Starts the epoch's data over when going on.", False)
    restore_callback_states_from_checkpoint: bool = told("Accepted: their states are always restored.", False)
    # seeds
    seed: int = told("The seed of everything.", 42)
    data_seed: int | None = told("The seed of the sampler; seed where not given.")
    full_determinism: bool = told("Deterministic algorithms only.", False)
    # loading
    dataloader_num_workers: int = told("Worker processes of a loader.", 0)
    dataloader_pin_memory: bool = told("Pinned memory.", True)
    dataloader_drop_last: bool = told("Drops a last batch that is short.", False)
    dataloader_persistent_workers: bool = told("Keeps the workers between epochs.", False)
    dataloader_prefetch_factor: int | None = told("Batches that each worker reads ahead.")
    dataloader_multiprocessing_context: str | None = told("How workers start: fork, spawn, forkserver.")
    dataloader_in_order: bool = told("Batches come in order.", True)
    remove_unused_columns: bool = told("Drops what the model's forward does not take.", True)
    label_names: list[str] | None = told("Which inputs are labels.")
    train_sampling_strategy: SamplingStrategy | str = told(
        "random, sequential, group_by_length or batch_rebalance.", "random"
    )
    length_column_name: str = told("The column that holds lengths.", "length")
    # devices
    use_cpu: bool = told("Runs on the CPU.", False)
    local_rank: int = told("Left over from launchers; not read.", -1)
    ddp_find_unused_parameters: bool | None = told("Looks for parameters without a gradient.")
    ddp_bucket_cap_mb: int | None = told("Size of a bucket in megabytes.")
    ddp_broadcast_buffers: bool | None = told("Broadcasts buffers.")
    ddp_static_graph: bool | None = told("The graph does not change.")
    ddp_backend: str | None = told("Backend of the process group.")
    ddp_timeout: int = told("Timeout of the process group, in seconds.", 1800)
    # True, too: the parser of command lines knows no such choice of kinds
    fsdp: None | str | list[str] = told("Shards the model: 'true', or words such as 'full_shard'.")
    fsdp_config: dict[str, Any] | str | None = told("Settings of the sharding.")
    deepspeed: dict[str, Any] | str | None = told("Settings of DeepSpeed.")
    # an AcceleratorConfig from construction on; the parser of command lines needs to see these kinds
    accelerator_config: dict[str, Any] | str | None = told("Settings of how data is split.")
    parallelism_config: Any = told("Not built.")
    # hub
    push_to_hub: bool = told("Pushes the model to the hub.", False)
    hub_model_id: str | None = told("The repository.")
    hub_strategy: HubStrategy | str = told("When to push.", "every_save")
    hub_token: str | None = told("The token.")
    hub_private_repo: bool | None = told("Whether the repository is private.")
    hub_always_push: bool = told("Accepted: each push is waited for, and none is left out.", False)
    hub_revision: str | None = told("The branch.")
    # the rest
    debug: str | list[str] = told("'underflow_overflow' stops at the first module with NaN or infinity.", "")
    skip_memory_metrics: bool = told("False: adds figures of the memory that training and evaluating take.", True)
    do_train: bool = told("For scripts; not read here.", False)
    do_eval: bool = told("For scripts; set where eval_strategy is.", False)
    do_predict: bool = told("For scripts; not read here.", False)

    def __post_init__(self) -> None:
        wrong = rules.converted(self)
        unread = tuple(text.partition("=")[0] + "=" for text in wrong)  # what is no number needs not be a good one
        wrong += [text for rule in rules.RULES for text in rule(self) if not text.startswith(unread)]
        if wrong:
            raise ConfigError(wrong)
        rules.fill(self)

    # ------------------------------------------------------------------ devices

    @property
    def device(self) -> torch.device:
        """Where the model trains."""
        if self.use_cpu:
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device("cuda", self.local_process_index % torch.cuda.device_count())
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")

    @property
    def n_gpu(self) -> int:
        """Devices of this process: one at the most, as a model is never spread silently."""
        return int(self.device.type == "cuda")

    @property
    def world_size(self) -> int:
        """How many processes take part."""
        launcher = detect()
        return launcher.world_size() if launcher is not None else int(env.get("WORLD_SIZE") or 1)

    @property
    def process_index(self) -> int:
        """This process's number among all."""
        return env.rank()

    @property
    def local_process_index(self) -> int:
        """This process's number on its machine."""
        launcher = detect()
        return launcher.local_rank() if launcher is not None else int(env.get("LOCAL_RANK") or 0)

    @property
    def parallel_mode(self) -> ParallelMode:
        """Whether several processes take part."""
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def place_model_on_device(self) -> bool:
        """Whether the trainer moves the model to the device."""
        return True

    @property
    def should_log(self) -> bool:
        """Whether this process logs."""
        return self.local_process_index == 0 if self.log_on_each_node else self.process_index == 0

    @property
    def should_save(self) -> bool:
        """Whether this process saves."""
        return self.local_process_index == 0 if self.save_on_each_node else self.process_index == 0

    @property
    def train_batch_size(self) -> int:
        """Training samples a batch."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Evaluation samples a batch."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def mixed_precision(self) -> str:
        """no, fp16 or bf16."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "no"

    @property
    def default_optim(self) -> str:
        """The optimizer where none is named."""
        return str(type(self).optim)

    @property
    def deepspeed_plugin(self) -> Any:
        """Which settings DeepSpeed has, as Accelerate's plugin names them; None without it."""
        if not self.deepspeed:
            return None
        config: Any = self.deepspeed
        stage = config.get("zero_optimization", {}).get("stage", 0)
        return SimpleNamespace(deepspeed_config=config, zero_stage=int(stage))

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a time."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def checkpoints_activations(self) -> bool:
        """Whether activations are recomputed, under either name."""
        return bool(self.activation_checkpointing or self.gradient_checkpointing)

    @property
    def shards_model(self) -> bool:
        """Whether each process holds a part of the model, or of what trains it: `fsdp` or `deepspeed`."""
        if self.deepspeed:
            return True
        if not self.fsdp:
            return False
        from bolide.transformers import sharding  # torch's FSDP takes its time to import

        return sharding.is_on(self)

    # ------------------------------------------------------------------ old names that scripts read

    @property
    def evaluation_strategy(self) -> Any:
        """The old name of `eval_strategy`."""
        return self.eval_strategy

    @property
    def warmup_ratio(self) -> float:
        """The share of the steps that warm up, where it was given as one."""
        return self.warmup_steps if self.warmup_steps < 1 else 0.0

    @property
    def no_cuda(self) -> bool:
        """The old name of `use_cpu`."""
        return self.use_cpu

    @property
    def group_by_length(self) -> bool:
        """The old switch of `train_sampling_strategy`."""
        return self.train_sampling_strategy == SamplingStrategy.GROUP_BY_LENGTH

    # ------------------------------------------------------------------ derived

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """How many of `num_training_steps` warm up."""
        steps = self.warmup_steps
        return int(steps) if steps >= 1 else math.ceil(num_training_steps * steps)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values; tokens are hidden."""
        found: dict[str, Any] = {}
        for f in fields(self):
            if not f.init:
                continue
            value = getattr(self, f.name)
            if isinstance(value, Enum):
                value = value.value
            if isinstance(value, AcceleratorConfig):
                value = value.to_dict()
            if isinstance(value, list) and value and isinstance(value[0], Enum):
                value = [item.value for item in value]
            found[f.name] = f"<{f.name.upper()}>" if f.name.endswith("_token") and value is not None else value
        return found

    def to_json_string(self) -> str:
        """All fields as JSON."""
        return json.dumps(self.to_dict(), indent=2, default=str)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """All fields as trackers take them: numbers, flags and text."""
        more = {"train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        kinds = (bool, int, float, str, torch.Tensor)
        return {key: value if type(value) in kinds else str(value) for key, value in {**self.to_dict(), **more}.items()}

    def __str__(self) -> str:
        lines = ",\n".join(f"{key}={value!r}" for key, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{lines},\n)"

    __repr__ = __str__

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """The first process goes through the block before the others, which then find what it prepared."""
        first = (self.local_process_index if local else self.process_index) == 0
        if self.world_size > 1:
            from bolide.transformers.ranks import open_ranks  # it needs these arguments

            open_ranks(self)
        if not first:
            collectives.barrier()
        try:
            yield
        finally:
            if first:
                collectives.barrier()

    def get_process_log_level(self) -> int:
        """The level of Python's logging that this process is to use."""
        levels = rules.LOG_LEVELS
        name = self.log_level if self.should_log else self.log_level_replica
        level = levels[name]
        return level if level >= 0 else levels["warning"]

    # ------------------------------------------------------------------ setting a group at a time

    def _set(self, **values: Any) -> TrainingArguments:
        known = {f.name for f in fields(self)}
        assert known >= set(values)
        for name, value in values.items():
            setattr(self, name, value)
        self.__post_init__()
        return self

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool = False,
        gradient_checkpointing: bool | None = None,
    ) -> TrainingArguments:
        """Sets what training needs; returns these arguments."""
        recomputes = activation_checkpointing if gradient_checkpointing is None else gradient_checkpointing
        return self._set(
            do_train=True, learning_rate=learning_rate, per_device_train_batch_size=batch_size,
            weight_decay=weight_decay, num_train_epochs=num_epochs, max_steps=max_steps,
            gradient_accumulation_steps=gradient_accumulation_steps, seed=seed,
            activation_checkpointing=recomputes, gradient_checkpointing=recomputes,
        )  # fmt: skip

    def set_evaluate(
        self,
        strategy: str = "no",
        steps: float = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
        jit_mode: bool = False,
    ) -> TrainingArguments:
        """Sets how evaluation goes; returns these arguments."""
        return self._set(
            eval_strategy=strategy, eval_steps=steps, per_device_eval_batch_size=batch_size,
            eval_accumulation_steps=accumulation_steps, eval_delay=delay or 0, prediction_loss_only=loss_only,
            do_eval=strategy != "no",
        )  # fmt: skip

    def set_testing(self, batch_size: int = 8, loss_only: bool = False, jit_mode: bool = False) -> TrainingArguments:
        """Sets how testing goes; returns these arguments."""
        return self._set(do_predict=True, per_device_eval_batch_size=batch_size, prediction_loss_only=loss_only)

    def set_save(
        self, strategy: str = "steps", steps: float = 500, total_limit: int | None = None, on_each_node: bool = False
    ) -> TrainingArguments:
        """Sets when to save; returns these arguments."""
        return self._set(
            save_strategy=strategy, save_steps=steps, save_total_limit=total_limit, save_on_each_node=on_each_node
        )

    def set_logging(
        self,
        strategy: str = "steps",
        steps: float = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> TrainingArguments:
        """Sets how to log; returns these arguments."""
        return self._set(
            logging_strategy=strategy, logging_steps=steps, report_to=report_to, log_level=level,
            logging_first_step=first_step, logging_nan_inf_filter=nan_inf_filter, log_on_each_node=on_each_node,
            log_level_replica=replica_level,
        )  # fmt: skip

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> TrainingArguments:
        """Sets the optimizer; returns these arguments."""
        return self._set(
            optim=name, learning_rate=learning_rate, weight_decay=weight_decay, adam_beta1=beta1, adam_beta2=beta2,
            adam_epsilon=epsilon, optim_args=args,
        )  # fmt: skip

    def set_lr_scheduler(
        self, name: str = "linear", num_epochs: float = 3.0, max_steps: int = -1, warmup_steps: float = 0
    ) -> TrainingArguments:
        """Sets the schedule; returns these arguments."""
        return self._set(
            lr_scheduler_type=name, num_train_epochs=num_epochs, max_steps=max_steps, warmup_steps=warmup_steps
        )

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> TrainingArguments:
        """Sets how data is loaded; returns these arguments."""
        return self._set(
            per_device_train_batch_size=train_batch_size, per_device_eval_batch_size=eval_batch_size,
            dataloader_drop_last=drop_last, dataloader_num_workers=num_workers, dataloader_pin_memory=pin_memory,
            dataloader_persistent_workers=persistent_workers, dataloader_prefetch_factor=prefetch_factor,
            dataloader_multiprocessing_context=multiprocessing_context, dataloader_in_order=in_order,
            auto_find_batch_size=auto_find_batch_size, ignore_data_skip=ignore_data_skip, data_seed=sampler_seed,
        )  # fmt: skip

    def set_push_to_hub(
        self,
        model_id: str,
        strategy: str = "every_save",
        token: str | None = None,
        private_repo: bool | None = None,
        always_push: bool = False,
        revision: str | None = None,
    ) -> TrainingArguments:
        """Sets how the model goes to the hub; returns these arguments."""
        return self._set(
            push_to_hub=True, hub_model_id=model_id, hub_strategy=strategy, hub_token=token,
            hub_private_repo=private_repo, hub_always_push=always_push, hub_revision=revision,
        )  # fmt: skip


@dataclass
class Seq2SeqTrainingArguments(TrainingArguments):
    """`TrainingArguments`, with what generating in an evaluation needs."""

    sortish_sampler: bool = told("As train_sampling_strategy='group_by_length'.", False)
    predict_with_generate: bool = told("Evaluates what the model generates.", False)
    generation_max_length: int | None = told("max_length of generate in an evaluation.")
    generation_num_beams: int | None = told("num_beams of generate in an evaluation.")
    generation_config: Any = told("A GenerationConfig, or the folder of one.")

    def __post_init__(self) -> None:
        if self.sortish_sampler and self.train_sampling_strategy == "random":
            self.train_sampling_strategy = SamplingStrategy.GROUP_BY_LENGTH
        super().__post_init__()

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        found = super().to_dict()
        config: Any = found.get("generation_config")
        if hasattr(config, "to_dict"):
            found["generation_config"] = config.to_dict()
        return found


def expanded(path: str | os.PathLike[str]) -> str:
    """A path with `~` as the home folder."""
    return os.path.expanduser(os.fspath(path))
