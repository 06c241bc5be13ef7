"""`TrainingArguments(fsdp=..., fsdp_config=...)`: what the settings mean to FSDPStrategy, and which parts it shards.

Owns the names of the settings, the choice of the parts that are gathered by themselves, and the whole weights of a
sharded model. Training is the engine's, sharding the strategy's. Who calls: rules.py, ranks.py and the trainer's parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bolide import collectives
from bolide.core.errors import ConfigError, did_you_mean
from bolide.core.messages import warn
from bolide.core.protocols import Optimizable
from bolide.strategies.fsdp import FSDPStrategy
from bolide.strategies.strategy import plain_keys
from bolide.transformers.loss import base_of

WORDS = {
    "full_shard": "FULL_SHARD", "shard_grad_op": "SHARD_GRAD_OP", "hybrid_shard": "HYBRID_SHARD",
    "hybrid_shard_zero2": "_HYBRID_SHARD_ZERO2", "no_shard": "NO_SHARD", "auto_wrap": None, "offload": None,
}  # fmt: skip
"""The words of `fsdp`, and the sharding that each asks for."""

POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
FREE = (
    "version", "sync_module_states", "use_orig_params", "forward_prefetch", "backward_prefetch", "limit_all_gathers",
    "cpu_ram_efficient_loading",
)  # fmt: skip
"""Settings that change nothing here: FSDP2 does so by itself, or they are about the time of an exchange alone."""

READ = (
    "reshard_after_forward", "sharding_strategy", "cpu_offload", "offload_params", "activation_checkpointing",
    "state_dict_type", "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params",
)  # fmt: skip
REFUSED = {
    "xla": "XLA is not built", "xla_fsdp_v2": "XLA is not built", "xla_fsdp_settings": "XLA is not built",
    "xla_fsdp_grad_ckpt": "XLA is not built", "mixed_precision_policy": "write bf16=True in its place",
    "ignored_modules": "all of the model is sharded; leave it out",
}  # fmt: skip
TRIED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
NOT_WITH_IT: dict[str, str] = {
    "torch_compile": "compiling a sharded model was not tried; leave one of them out",
    "push_to_hub": "save the model at the end, and push that; leave it out",
    "fp16_full_eval": "a sharded model keeps its dtype; leave it out",
    "bf16_full_eval": "a sharded model keeps its dtype; leave it out",
    "debug": "looking into the modules of a sharded model was not tried; leave it out",
    "predict_with_generate": "processes that generate texts of different lengths would wait for each other; leave it "
    "out, and generate from the saved model",
}  # fmt: skip


# ---------------------------------------------------------------------- the settings


def words_of(args: Any) -> list[str]:
    """The words of `fsdp`; none where nothing is sharded."""
    asked = args.fsdp
    if asked in (None, False, "", [], ()) or (isinstance(asked, str) and asked.lower() == "false"):
        return []
    if asked is True or (isinstance(asked, str) and asked.lower() == "true"):
        return ["full_shard"]
    found = asked.replace(",", " ").split() if isinstance(asked, str) else list(asked)
    return [str(getattr(word, "value", word)) for word in found]


def is_on(args: Any) -> bool:
    """Whether the model is sharded."""
    return bool(words_of(args))


def settings_of(args: Any) -> dict[str, Any]:
    """`fsdp_config` without the prefix `fsdp_` of its names, and without what is not set."""
    given = args.fsdp_config if isinstance(args.fsdp_config, Mapping) else {}
    return {str(name).removeprefix("fsdp_"): value for name, value in given.items() if value is not None}


def wrong_settings(args: Any) -> Iterator[str]:
    """What is wrong with `fsdp` and `fsdp_config`, and what does not go with them."""
    words, config = words_of(args), settings_of(args)
    if not words:
        return
    for word in words:
        if word not in WORDS:
            yield f"fsdp={args.fsdp!r}: there is no {word!r}." + did_you_mean(word, list(WORDS))
    if args.world_size == 1:
        yield (
            f"fsdp={args.fsdp!r} shards a model over several processes, and there is one: start the script with "
            "`torchrun --nproc-per-node=2 script.py` or `bolide launch --nproc 2 script.py`, or leave fsdp out"
        )
    for name, value in config.items():
        if name in REFUSED and value:
            yield f"fsdp_config={{{name!r}: {value!r}}}: {REFUSED[name]}"
        elif name not in (*READ, *FREE, *REFUSED):
            yield f"fsdp_config has no {name!r}." + did_you_mean(name, (*READ, *FREE))
    kind = _policy(config)
    if kind not in POLICIES:
        yield f"fsdp_config={{'auto_wrap_policy': {kind!r}}} must be one of {', '.join(POLICIES)}"
    if kind == "SIZE_BASED_WRAP" and not int(config.get("min_num_params") or 0) > 0:
        yield "fsdp_config={'auto_wrap_policy': 'SIZE_BASED_WRAP'} needs the size: add 'min_num_params'"
    saved = str(config.get("state_dict_type", "FULL_STATE_DICT")).upper()
    if saved not in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        yield f"fsdp_config={{'state_dict_type': {saved!r}}} must be FULL_STATE_DICT or SHARDED_STATE_DICT"
    shard = _sharding(words, config)
    if shard not in WORDS.values():
        yield f"fsdp_config: {shard!r} is no way to shard; write 'reshard_after_forward': True or False"
    if config.get("activation_checkpointing") and args.checkpoints_activations:
        yield (
            "gradient_checkpointing=True and fsdp_config={'activation_checkpointing': True} both recompute "
            "activations; leave one of them out"
        )
    if config.get("activation_checkpointing") and kind != "TRANSFORMER_BASED_WRAP":
        yield "fsdp_config={'activation_checkpointing': True} recomputes layers: it needs TRANSFORMER_BASED_WRAP"
    optimizer = getattr(args.optim, "value", args.optim)
    if optimizer not in TRIED_OPTIMIZERS:
        yield f"optim={optimizer!r} was not tried on a sharded model; with fsdp write one of {TRIED_OPTIMIZERS}"
    for name, text in NOT_WITH_IT.items():
        if getattr(args, name, None):
            yield f"fsdp={args.fsdp!r} and {name}={getattr(args, name)!r}: {text}"


def _policy(config: Mapping[str, Any]) -> str:
    given = config.get("auto_wrap_policy")
    if given is None:
        by_size = config.get("min_num_params") and not config.get("transformer_layer_cls_to_wrap")
        return "SIZE_BASED_WRAP" if by_size else "TRANSFORMER_BASED_WRAP"
    return str(given).upper()


def _sharding(words: Iterable[str], config: Mapping[str, Any]) -> Any:
    """The sharding that was asked for: `fsdp_config` says more than the words do."""
    found = next((WORDS[word] for word in words if WORDS.get(word)), "FULL_SHARD")
    asked = config.get("sharding_strategy", config.get("reshard_after_forward"))
    if asked is None:
        return found
    if isinstance(asked, bool):
        hybrid = "HYBRID" in str(found)
        return ("HYBRID_SHARD" if hybrid else "FULL_SHARD") if asked else "_HYBRID_SHARD_ZERO2" if hybrid else (
            "SHARD_GRAD_OP"
        )  # fmt: skip
    word = str(asked).lower()
    return WORDS.get(word.removeprefix("_"), word)


# ---------------------------------------------------------------------- the strategy


class RankFSDP(FSDPStrategy):
    """FSDP, as the second door uses it: an evaluation in the midst of training leaves the sharded model as it is."""

    def prepare(self, module: nn.Module, build_optimizers: Callable[[], list[Optimizable]] | None) -> list[Optimizable]:
        """As of FSDP; for an evaluation of the model that trains there is nothing to prepare."""
        if build_optimizers is None and module is self.module:
            return self.optimizers
        return super().prepare(module, build_optimizers)


def strategy_for(args: Any, model: nn.Module, backend: str | None) -> FSDPStrategy:
    """FSDPStrategy with the settings of the arguments."""
    words, config = words_of(args), settings_of(args)
    if str(config.get("state_dict_type", "")).upper() == "SHARDED_STATE_DICT":
        warn(
            "fsdp_config={'state_dict_type': 'SHARDED_STATE_DICT'}: a checkpoint folder holds the whole model in "
            "model.safetensors either way, gathered on the first process."
        )
    parts = chosen_parts(model, config)
    recomputed = layer_classes(model, config) if config.get("activation_checkpointing") else None
    return RankFSDP(
        process_group_backend=backend,
        timeout=args.ddp_timeout_delta,
        sharding_strategy=_sharding(words, config),
        cpu_offload=bool("offload" in words or config.get("cpu_offload") or config.get("offload_params")),
        auto_wrap_policy=lambda part: id(part) in parts,
        activation_checkpointing_policy=recomputed,
    )


def layer_classes(model: nn.Module, config: Mapping[str, Any]) -> tuple[type[nn.Module], ...]:
    """The classes of the layers by the names in `fsdp_config`, else those that the model says are not to be split.

    Raises:
        ConfigError: no module of the model is of a class that was named.
    """
    asked = config.get("transformer_layer_cls_to_wrap")
    names = asked.replace(",", " ").split() if isinstance(asked, str) else list(asked or ())
    known = {type(part).__name__: type(part) for part in model.modules()}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"fsdp_config={{'transformer_layer_cls_to_wrap': {asked!r}}}: the model has no module of class "
            f"{missing[0]}." + did_you_mean(missing[0], sorted(known)) + f" It has {', '.join(sorted(known))}"
        )
    names = names or list(getattr(base_of(model), "_no_split_modules", None) or ())
    return tuple(known[name] for name in names if name in known)


def chosen_parts(model: nn.Module, config: Mapping[str, Any]) -> set[int]:
    """The ids of the modules that are gathered by themselves; the rest of the model is gathered at once.

    One that shares a parameter with a module outside of it stays with the rest: two parts cannot hold one parameter.
    """
    kind = _policy(config)
    if kind == "NO_WRAP":
        return set()
    if kind == "SIZE_BASED_WRAP":
        found = _by_size(model, int(config["min_num_params"]))
    else:
        found = [part for part in model.modules() if isinstance(part, layer_classes(model, config))]
    uses: dict[int, int] = {}
    for part in model.modules():
        for parameter in part.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return {id(part) for part in found if part is not model and not _shares(part, uses)}


def _shares(part: nn.Module, uses: Mapping[int, int]) -> bool:
    inside: dict[int, int] = {}
    for module in part.modules():
        for parameter in module.parameters(recurse=False):
            inside[id(parameter)] = inside.get(id(parameter), 0) + 1
    return any(uses[name] != count for name, count in inside.items())


def _by_size(model: nn.Module, least: int) -> list[nn.Module]:
    """The innermost modules with at least so many parameters that no chosen part within them has."""
    found: list[nn.Module] = []

    def left_in(module: nn.Module) -> int:
        count = sum(p.numel() for p in module.parameters(recurse=False)) + sum(map(left_in, module.children()))
        if count < least or isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            return count
        found.append(module)
        return 0

    left_in(model)
    return found


# ---------------------------------------------------------------------- whole weights


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, whole, in the first process's memory; empty on the others. All processes must call it."""
    found: dict[str, Tensor] = {}
    first = collectives.rank() == 0
    for name, value in plain_keys(model.state_dict()).items():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        if first and isinstance(full, Tensor):
            found[name] = full.detach().cpu()
    return tied(model, found)


def tied(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Whole weights in which names of one parameter have one tensor again, as files of the plain model have them."""
    first: dict[int, str] = {}
    for name, parameter in plain_keys(dict(model.named_parameters(remove_duplicate=False))).items():
        known = first.setdefault(id(parameter), name)
        if name in state and known in state:
            state[name] = state[known]
    return state


class Plugin:
    """`accelerator.state.fsdp_plugin`, which scripts ask for whole weights before they save."""

    state_dict_type = "FULL_STATE_DICT"

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Whole weights are what is saved; of another type it is said that they stay so."""
        if state_dict_type is not None and "FULL" not in str(state_dict_type).upper():
            logging.getLogger("bolide").warning("Models are saved whole; %s changes nothing.", state_dict_type)
