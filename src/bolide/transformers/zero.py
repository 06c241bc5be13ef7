"""`TrainingArguments(deepspeed=...)`: DeepSpeed's configuration filled from the arguments, for DeepSpeedStrategy.

Owns the entries that say "auto", what contradicts the arguments, and the optimizer and the scheduler that the
configuration asks for. The engine is the strategy's. Who calls: rules.py, ranks.py and the trainer's parts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bolide import collectives
from bolide.core.errors import ConfigError
from bolide.core.protocols import Optimizable
from bolide.strategies import deepspeed_state as states
from bolide.strategies.deepspeed import DeepSpeedStrategy
from bolide.strategies.deepspeed_config import AUTO, get, put
from bolide.strategies.deepspeed_parts import make_scheduler
from bolide.strategies.strategy import plain_keys
from bolide.transformers.loss import base_of
from bolide.transformers.sharding import NOT_WITH_IT

OPTIMIZERS = ("Adam", "AdamW", "SGD")
SCHEDULERS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
TRIED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd")
OF_THE_TRAINER = ("optimizer", "scheduler", "train_batch_size", "gradient_accumulation_steps", "gradient_clipping")
"""Entries that the trainer of the second door does itself."""


def _named(args: Any) -> dict[str, tuple[str, Any]]:
    """For each entry that an argument decides: what that is called, and its value."""
    found: dict[str, tuple[str, Any]] = {
        "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", args.per_device_train_batch_size),
        "gradient_accumulation_steps": ("gradient_accumulation_steps", args.gradient_accumulation_steps),
        "train_batch_size": (
            "per_device_train_batch_size * processes * gradient_accumulation_steps",
            args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps,
        ),
        "gradient_clipping": ("max_grad_norm", args.max_grad_norm),
        "optimizer.params.lr": ("learning_rate", args.learning_rate),
        "optimizer.params.eps": ("adam_epsilon", args.adam_epsilon),
        "optimizer.params.betas": ("[adam_beta1, adam_beta2]", [args.adam_beta1, args.adam_beta2]),
        "optimizer.params.weight_decay": ("weight_decay", args.weight_decay),
        "scheduler.params.warmup_max_lr": ("learning_rate", args.learning_rate),
        "fp16.enabled": ("fp16", args.fp16),
        "bf16.enabled": ("bf16", args.bf16),
    }
    if args.warmup_steps >= 1:
        found["scheduler.params.warmup_num_steps"] = ("warmup_steps", int(args.warmup_steps))
    if args.max_steps > 0:
        found["scheduler.params.total_num_steps"] = ("max_steps", args.max_steps)
    return found


def wrong_settings(args: Any) -> Iterator[str]:
    """What contradicts the arguments in DeepSpeed's configuration, and what does not go with it."""
    config = args.deepspeed
    if not isinstance(config, Mapping):
        yield f"deepspeed={config!r} must be DeepSpeed's configuration: a dictionary, or the path of a JSON file"
        return
    if args.fsdp:
        yield "fsdp and deepspeed contradict each other; leave one of them out"
    if args.world_size == 1:
        yield (
            "deepspeed=... spreads training over several processes, and there is one: start the script with "
            "`torchrun --nproc-per-node=2 script.py` or `bolide launch --nproc 2 script.py`, or leave it out"
        )
    for place, (name, value) in _named(args).items():
        given = get(config, place)
        if given is None or given == AUTO:
            continue
        same = list(given) == value if isinstance(value, list) else given == value
        if not same:
            yield f"deepspeed: {place} is {given!r}, and {name} {value!r}; write the same, or {place}: 'auto'"
    stage = get(config, "zero_optimization.stage")
    if stage not in (1, 2, 3) or isinstance(stage, bool):
        yield f"deepspeed: zero_optimization.stage={stage!r} must be 1, 2 or 3; without it, leave deepspeed out"
    yield from _wrong_makers(config)
    for place in ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"):
        if get(config, place) not in (None, "none"):
            yield f"deepspeed: {place}={get(config, place)!r} was not tried with this door; leave it out"
    optimizer = getattr(args.optim, "value", args.optim)
    if optimizer not in TRIED_OPTIMIZERS:
        yield f"optim={optimizer!r} was not tried under DeepSpeed; write one of {', '.join(TRIED_OPTIMIZERS)}"
    for name, text in {**NOT_WITH_IT, **NOT_TRIED}.items():
        if getattr(args, name, None):
            yield f"deepspeed=... and {name}={getattr(args, name)!r}: {text}"


NOT_TRIED = {
    "fp16": "it was not tried; write bf16=True",
    "checkpoints_activations": "it was not tried; leave it out",
    "neftune_noise_alpha": "it was not tried; leave it out",
}


def _wrong_makers(config: Mapping[str, Any]) -> Iterator[str]:
    for part, kinds in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        wanted = config.get(part)
        if wanted is None:
            continue
        kind = get(config, f"{part}.type")
        if kind not in kinds:
            yield f"deepspeed: {part}.type={kind!r} is not built for this door; write one of {', '.join(kinds)}"
    known = ("lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode", "momentum")
    for name in get(config, "optimizer.params") or {}:
        if name not in known:
            yield f"deepspeed: optimizer.params.{name} is not built for this door; there are {', '.join(known)}"


def filled(args: Any, model: nn.Module | None, steps: int = 0) -> dict[str, Any]:
    """The configuration with a value in the place of each "auto"; `steps` is the number of optimizer steps."""
    config: dict[str, Any] = copy.deepcopy(dict(args.deepspeed))
    values = {place: value for place, (_, value) in _named(args).items()}
    values["scheduler.params.warmup_min_lr"] = 0
    values["scheduler.params.warmup_num_steps"] = max(1, args.get_warmup_steps(steps))
    values["scheduler.params.total_num_steps"] = steps
    width = _width(model)
    if width is not None:
        values["zero_optimization.reduce_bucket_size"] = width * width
        values["zero_optimization.stage3_prefetch_bucket_size"] = int(0.9 * width * width)
        values["zero_optimization.stage3_param_persistence_threshold"] = 10 * width
    for place, value in values.items():
        if get(config, place) == AUTO:
            put(config, place, value)
    return config


def _width(model: nn.Module | None) -> int | None:
    """The width of a model's hidden layers, as its configuration has it; the largest of several."""
    config = getattr(base_of(model), "config", None) if model is not None else None
    for one in (config, getattr(config, "text_config", None)):
        found = getattr(one, "hidden_size", None) or max(getattr(one, "hidden_sizes", None) or [0])
        if found:
            return int(found)
    return None


def refuse_again(args: Any, has_trained: bool) -> None:
    """Refuses another training of a model that stage 3 has split, whose parts are those of the engine before.

    Raises:
        ConfigError: the trainer has trained already.
    """
    if has_trained and get(args.deepspeed, "zero_optimization.stage") == 3:
        raise ConfigError(
            "train() for a second time is not built at DeepSpeed's stage 3: save the model, and make a new Trainer of "
            "it; or write stage 2"
        )


def optimizer_of(args: Any) -> tuple[Any, dict[str, Any]] | None:
    """The optimizer that the configuration asks for, and its arguments; None where it asks for none."""
    if not isinstance(args.deepspeed, Mapping) or args.deepspeed.get("optimizer") is None:
        return None
    wanted = filled(args, None)["optimizer"]
    options = {
        key: value for key, value in wanted.get("params", {}).items() if key not in ("torch_adam", "weight_decay")
    }
    coupled = options.pop("adam_w_mode", True) is False
    options.setdefault("lr", args.learning_rate)
    if wanted["type"] == "SGD":
        return torch.optim.SGD, {key: options[key] for key in ("lr", "momentum") if key in options}
    options.pop("momentum", None)
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    return (torch.optim.Adam if wanted["type"] == "Adam" and coupled else torch.optim.AdamW), options


def scheduler_of(args: Any, optimizer: Any, steps: int) -> Any:
    """The scheduler that the configuration asks for, over `optimizer`; None where it asks for none."""
    if not isinstance(args.deepspeed, Mapping) or args.deepspeed.get("scheduler") is None:
        return None
    return make_scheduler(filled(args, None, steps)["scheduler"], optimizer)


# ---------------------------------------------------------------------- the strategy


class RankDeepSpeed(DeepSpeedStrategy):
    """DeepSpeed, as the second door uses it: weights by the model's own names, evaluations in the midst of training."""

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """As of DeepSpeed; for an evaluation of the model that trains there is nothing to prepare."""
        if build_optimizers is None and module is self.module and self._engine_of is module:
            return self.optimizers
        return super().prepare(module, build_optimizers)

    def state(self) -> dict[str, Any]:
        """The model's weights by name, whole, on the CPU of the first process. All must call it."""
        assert self.module is not None
        return plain_keys(states.weights(_model_in(self.module), self.is_global_zero))

    def localized(self, module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Whole weights by the model's names as it takes them; parameters that are split get theirs here."""
        if _model_in(module) is module:
            return super().localized(module, state)
        found = super().localized(module, {f"{PREFIX}{name}": value for name, value in state.items()})
        return {name.removeprefix(PREFIX): value for name, value in found.items()}


PREFIX = "model."
"""What the adapter's own names of the model's parameters begin with."""


def _model_in(module: nn.Module) -> nn.Module:
    """The user's model within the adapter."""
    net = vars(module).get("net")
    return net if isinstance(net, nn.Module) else module


def strategy_for(args: Any, model: nn.Module, backend: str | None) -> DeepSpeedStrategy:
    """DeepSpeedStrategy with the configuration of the arguments."""
    config = filled(args, model)
    for name in OF_THE_TRAINER:
        config.pop(name, None)
    return RankDeepSpeed(config=config, process_group_backend=backend, timeout=args.ddp_timeout_delta)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, whole, in the first process's memory; empty on the others. All processes must call it."""
    first = collectives.rank() == 0
    found = plain_keys(states.weights(model, first))
    return found if first else {}


def put_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Writes whole weights into a model, and into what DeepSpeed keeps of it in full precision. All must call it."""
    for name, parameter in model.named_parameters():
        if name in state:
            states.put_weight(parameter, state[name])
