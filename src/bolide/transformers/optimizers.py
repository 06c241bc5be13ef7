"""The optimizers by name, and which parameters decay.

One row a name: the class, where it comes from, and its arguments. Packages beside torch are imported when their row
is used. Who calls: the trainer.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bolide.core.errors import ConfigError, MissingPackageError
from bolide.transformers.choices import NOT_BUILT_OPTIMIZERS, OptimizerNames

NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of parameters that do not decay, in lower case."""


def parsed(text: str | None) -> dict[str, str]:
    """`optim_args` as a dictionary.

    Raises:
        ConfigError: not of the form 'name=value,name=value'.
    """
    found: dict[str, str] = {}
    for pair in (text or "").replace(" ", "").split(","):
        if pair:
            key, separator, value = pair.partition("=")
            if not separator:
                raise ConfigError(f"optim_args={text!r} must look like 'name=value,name=value'")
            found[key] = value
    return found


def _number(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _adam(args: Any) -> dict[str, Any]:
    return {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def _bitsandbytes(name: str) -> Any:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingPackageError("this 8-bit or paged optimizer", "bitsandbytes")
    import bitsandbytes

    return getattr(bitsandbytes.optim, name)


def _bnb(name: str, bits: int | None = None, paged: bool = False, adam: bool = True) -> Callable[[Any], Any]:
    def row(args: Any) -> tuple[Any, dict[str, Any]]:
        options = _adam(args) if adam else {}
        if name in ("Lion",):
            options = {"betas": options["betas"]}
        if bits is not None:
            options["optim_bits"] = bits
        if paged:
            options["is_paged"] = True
        return _bitsandbytes(name), options

    return row


def _torchao(name: str) -> Callable[[Any], Any]:
    def row(args: Any) -> tuple[Any, dict[str, Any]]:
        if importlib.util.find_spec("torchao") is None:
            raise MissingPackageError("this optimizer of low precision", "torchao")
        import torchao.optim

        return getattr(torchao.optim, name), _adam(args)

    return row


def _adafactor(args: Any) -> tuple[Any, dict[str, Any]]:
    from bolide.transformers.state import has_transformers

    if not has_transformers():
        raise MissingPackageError('optim="adafactor"', "transformers")
    from transformers.optimization import Adafactor

    return Adafactor, {"scale_parameter": False, "relative_step": False}


def _schedule_free(name: str, betas: bool = True, warms_up: bool = True) -> Callable[[Any], Any]:
    def row(args: Any) -> tuple[Any, dict[str, Any]]:
        if importlib.util.find_spec("schedulefree") is None:
            raise MissingPackageError(f'optim="{args.optim.value}"', "schedulefree", "schedulefree")
        import schedulefree

        options = {**(_adam(args) if betas else {}), "weight_decay": args.weight_decay}
        return getattr(schedulefree, name), options | ({"warmup_steps": args.warmup_steps} if warms_up else {})

    return row


ROWS: dict[str, Callable[[Any], Any]] = {
    "adamw_torch": lambda args: (torch.optim.AdamW, _adam(args)),
    "adamw_torch_fused": lambda args: (torch.optim.AdamW, {**_adam(args), "fused": True}),
    "sgd": lambda args: (torch.optim.SGD, {}),
    "adagrad": lambda args: (torch.optim.Adagrad, {}),
    "rmsprop": lambda args: (torch.optim.RMSprop, {}),
    "adafactor": _adafactor,
    "adamw_8bit": _bnb("AdamW", 8),
    "adamw_bnb_8bit": _bnb("AdamW", 8),
    "paged_adamw_32bit": _bnb("AdamW", None, paged=True),
    "paged_adamw_8bit": _bnb("AdamW", 8, paged=True),
    "ademamix": _bnb("AdEMAMix"),
    "ademamix_8bit": _bnb("AdEMAMix", 8),
    "paged_ademamix_32bit": _bnb("AdEMAMix", None, paged=True),
    "paged_ademamix_8bit": _bnb("AdEMAMix", 8, paged=True),
    "lion_32bit": _bnb("Lion"),
    "lion_8bit": _bnb("Lion", 8),
    "paged_lion_32bit": _bnb("Lion", None, paged=True),
    "paged_lion_8bit": _bnb("Lion", 8, paged=True),
    "rmsprop_bnb": _bnb("RMSprop", adam=False),
    "rmsprop_bnb_32bit": _bnb("RMSprop", 32, adam=False),
    "rmsprop_bnb_8bit": _bnb("RMSprop", 8, adam=False),
    "adamw_torch_4bit": _torchao("AdamW4bit"),
    "adamw_torch_8bit": _torchao("AdamW8bit"),
    "schedule_free_adamw": _schedule_free("AdamWScheduleFree"),
    "schedule_free_radam": _schedule_free("RAdamScheduleFree", warms_up=False),
    "schedule_free_sgd": _schedule_free("SGDScheduleFree", betas=False),
}
assert set(ROWS) == {name.value for name in OptimizerNames} - set(NOT_BUILT_OPTIMIZERS)


def optimizer_class(args: Any) -> tuple[Any, dict[str, Any]]:
    """The optimizer's class and its arguments, learning rate and `optim_args` among them.

    Raises:
        MissingPackageError: its package is not installed.
    """
    kind, options = ROWS[str(args.optim.value)](args)
    more = {key: _number(value) for key, value in parsed(args.optim_args).items()}
    return kind, {"lr": args.learning_rate, **options, **more}


@contextmanager
def averaged(optimizer: Any) -> Iterator[None]:
    """While this is open, the weights of a schedule-free optimizer are those to evaluate and to save; others have one
    kind of weights only.
    """
    trains = switches(optimizer) and optimizer.param_groups[0]["train_mode"]
    if trains:
        optimizer.eval()
    try:
        yield
    finally:
        if trains:
            optimizer.train()


def switches(optimizer: Any) -> bool:
    """Whether an optimizer has weights to train with and others to evaluate: `train()` and `eval()` go between them."""
    return "train_mode" in getattr(optimizer, "param_groups", [{}])[0]


def decaying(model: nn.Module) -> list[str]:
    """The names of the parameters that weight decay applies to: all but biases and norms."""
    norms = {f"{name}." if name else "" for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)}
    return [
        name for name, _ in model.named_parameters()
        if not NO_DECAY.search(name.lower()) and f"{name.rpartition('.')[0]}." not in norms
    ]  # fmt: skip


def build(
    kind: Any, options: dict[str, Any], model: nn.Module, decay: Iterable[str], weight_decay: float, joins: bool = True
) -> Any:
    """An optimizer over two groups of parameters: those that decay, and those that do not. Frozen ones are in neither.

    Without weight decay nothing tells the two apart, and an optimizer spends its fixed cost on each: they are one group
    then, which is saved as two, and takes two, so that files are the same either way; they stay two without `joins`.
    """
    names = set(decay)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decaying_ones = [p for name, p in trained if name in names]
    others = [p for name, p in trained if name not in names]
    if weight_decay or not decaying_ones or not others or not joins:
        both = [{"params": decaying_ones, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return kind(both, **options)
    optimizer = kind([{"params": decaying_ones + others, "weight_decay": 0.0, JOINED: len(decaying_ones)}], **options)
    optimizer.register_state_dict_post_hook(_as_two)
    optimizer.register_load_state_dict_pre_hook(_as_one)
    return optimizer


JOINED = "joined_at"
"""The key of a group that stands for two: how many of its parameters are the first one's."""


def _as_two(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    (group,) = state["param_groups"]
    rest = {key: value for key, value in group.items() if key not in ("params", JOINED)}
    first, second = group["params"][: group[JOINED]], group["params"][group[JOINED] :]
    return {**state, "param_groups": [{**rest, "params": first}, {**rest, "params": second}]}


def _as_one(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    if len(state["param_groups"]) != 2:
        return state
    first, second = state["param_groups"]
    joined = {**first, "params": [*first["params"], *second["params"]], "weight_decay": 0.0}
    return {**state, "param_groups": [{**joined, JOINED: len(first["params"])}]}
