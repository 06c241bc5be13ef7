"""What the trainer finds out, checks and arranges before the first batch: free functions over its model and settings.

Who calls: trainer.py.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from bolide.core.errors import ConfigError, MissingPackageError, UserCodeError, did_you_mean
from bolide.core.messages import info, warn
from bolide.transformers import ranks
from bolide.transformers.arguments import TrainingArguments
from bolide.transformers.callbacks import refuse_unknown
from bolide.transformers.data import default_data_collator
from bolide.transformers.loss import LabelSmoother, base_of
from bolide.transformers.overflow import Watch
from bolide.transformers.schedules import Schedule
from bolide.transformers.state import has_transformers
from bolide.transformers.weights import is_peft, unwrapped

Given = Mapping[str, Any]
CONSTRUCTOR = (
    "model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "model_init",
    "compute_loss_func", "compute_metrics", "callbacks", "optimizers", "optimizer_cls_and_kwargs",
    "preprocess_logits_for_metrics", "tokenizer",
)  # fmt: skip


# ---------------------------------------------------------------------- what the constructor was given


def with_old_names(processing_class: Any, old: dict[str, Any]) -> tuple[Any, list[str]]:
    """The processing class, from its old name too, and what is wrong with all other unknown arguments."""
    wrong = []
    for name, value in old.items():
        if name == "tokenizer":
            warn("Trainer was given old spellings: tokenizer is now processing_class.", FutureWarning)
            if processing_class is not None and value is not None and processing_class is not value:
                wrong.append("tokenizer and processing_class are two spellings of one argument; leave tokenizer out")
            processing_class = processing_class if processing_class is not None else value
        else:
            wrong.append(f"Trainer has no argument {name!r}." + did_you_mean(name, CONSTRUCTOR))
    return processing_class, wrong


def refuse_other_arguments(args: Any) -> None:
    """Raises where the settings are not TrainingArguments of Bolide's.

    Raises:
        ConfigError: a dictionary, transformers' own arguments, or something else.
    """
    if isinstance(args, TrainingArguments):
        return
    if isinstance(args, Mapping):
        raise ConfigError("args is a dictionary; write args=TrainingArguments(**settings)")
    if any(cls.__module__.partition(".")[0] == "transformers" for cls in type(args).__mro__):
        raise ConfigError(
            f"args is a {type(args).__name__} of transformers, whose settings are not checked as Bolide's are; import "
            "it from bolide.transformers, as the Trainer: from bolide.transformers import Trainer, TrainingArguments"
        )
    raise ConfigError(f"args is a {type(args).__name__}; give bolide.transformers.TrainingArguments(...)")


def _model(args: Any, given: Given) -> Iterator[str]:
    model, init = given["model"], given["model_init"]
    if model is None and init is None:
        yield "Trainer needs a model: write model=..., or model_init=... for a function that makes one"
    if model is not None and init is not None:
        yield "model and model_init contradict each other; leave one of them out"
    if isinstance(model, type):
        yield f"model is the class {model.__name__}; give an object of it: write {model.__name__}(...)"
    elif model is not None and not isinstance(model, nn.Module):
        yield f"model is a {type(model).__name__}; give an nn.Module"
    if init is not None and len(parameters_of(init)) > 1:
        yield "model_init must take nothing, or the trial of a search"


def _optimizers(args: Any, given: Given) -> Iterator[str]:
    pair = given["optimizers"]
    if not isinstance(pair, tuple) or len(pair) != 2:
        yield "optimizers must be a pair (optimizer, scheduler); either may be None"
        return
    has = pair[0] is not None or pair[1] is not None
    if has and given["model_init"] is not None:
        yield "optimizers hold the parameters of one model, and model_init makes others; override create_optimizer"
    if has and given["optimizer_cls_and_kwargs"] is not None:
        yield "optimizers and optimizer_cls_and_kwargs contradict each other; leave one of them out"
    if pair[0] is not None and isinstance(given["model"], nn.Module) and hasattr(pair[0], "param_groups"):
        own = {id(p) for p in given["model"].parameters()}
        if not any(id(p) in own for group in pair[0].param_groups for p in group["params"]):
            yield "optimizers[0] holds none of the model's parameters; make it of model.parameters()"


def _data(args: Any, given: Given) -> Iterator[str]:
    if args.eval_strategy != "no" and given["eval_dataset"] is None:
        yield f'eval_strategy="{args.eval_strategy}" needs eval_dataset; give one, or write eval_strategy="no"'
    train = given["train_dataset"]
    if isinstance(train, Iterator) and not isinstance(train, IterableDataset):
        yield (
            "train_dataset is an iterator, which is read once only; give a list or a Dataset, or for a stream an "
            "IterableDataset, whose __iter__ begins anew"
        )
    elif train is not None and not hasattr(type(train), "__len__") and args.max_steps <= 0:
        yield "train_dataset has no length, so its epochs cannot be counted: write max_steps=..."


def _metrics(args: Any, given: Given) -> Iterator[str]:
    function = given["compute_metrics"]
    if args.batch_eval_metrics and function is not None and "compute_result" not in parameters_of(function):
        yield (
            "batch_eval_metrics=True calls compute_metrics for each batch, with compute_result=True at the last: "
            "write def compute_metrics(prediction, compute_result)"
        )


def _callbacks(args: Any, given: Given) -> Iterator[str]:
    yield from refuse_unknown(given["callbacks"])


def _saving(args: Any, given: Given) -> Iterator[str]:
    if args.save_strategy != "no" and importlib.util.find_spec("safetensors") is None:
        yield str(MissingPackageError(f'save_strategy="{args.save_strategy}"', "safetensors", "safetensors"))


def _sharding(args: Any, given: Given) -> Iterator[str]:
    if not args.shards_model:
        return
    name = "deepspeed" if args.deepspeed else "fsdp"
    pair = given["optimizers"]
    if isinstance(pair, tuple) and any(one is not None for one in pair):
        yield (
            f"{name}=...: an optimizer that is made before the model is spread holds parameters that it no "
            "longer has; write optimizer_cls_and_kwargs=(class, arguments), or override create_optimizer"
        )
    if is_peft(given["model"]):
        yield f"{name}=...: a PEFT model was not tried with it; leave {name} out, or merge its adapters"


def _several(args: Any, given: Given) -> Iterator[str]:
    yield from ranks.refused(args)


RULES: tuple[Callable[[Any, Given], Iterator[str]], ...] = (
    _model, _optimizers, _data, _metrics, _callbacks, _saving, _sharding, _several,
)  # fmt: skip


def parameters_of(function: Any) -> dict[str, Any]:
    """The parameters of a function by name; none where it has no signature."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


# ---------------------------------------------------------------------- what the model is like


def label_names(args: Any, base: Any) -> list[str]:
    """Which inputs are labels: as asked, else by the names in the model's forward."""
    if args.label_names is not None:
        return list(args.label_names)
    names = parameters_of(type(base).forward)
    answers = ("start_positions", "end_positions") if "QuestionAnswering" in type(base).__name__ else ()
    return [name for name in names if "label" in name or name in answers]


def returns_loss_by_default(base: Any) -> bool:
    """Whether the model gives a loss without labels, as CLIP does."""
    parameter = parameters_of(type(base).forward).get("return_loss")
    return parameter is not None and parameter.default is True


def device_of(model: nn.Module) -> torch.device:
    """Where a model's parameters are."""
    parameter = next(model.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")


def collator_for(processing_class: Any) -> Any:
    """The default collator: one that pads, for a tokenizer, else one that stacks."""
    if processing_class is None or not hasattr(processing_class, "pad"):
        return default_data_collator
    if not has_transformers():
        raise MissingPackageError("Padding with a tokenizer", "transformers")
    from transformers import DataCollatorWithPadding

    return DataCollatorWithPadding(processing_class)


# ---------------------------------------------------------------------- what is arranged


def label_smoother(args: Any, model: Any) -> LabelSmoother | None:
    """What smooths the labels of the loss; None where nothing does, as with labels of which several may hold."""
    if not args.label_smoothing_factor:
        return None
    config = getattr(base_of(model), "config", None)
    if getattr(config, "problem_type", None) == "multi_label_classification":
        warn(
            f"label_smoothing_factor={args.label_smoothing_factor}: this model tells for each label whether it holds "
            "(multi_label_classification), which is not smoothed; its own loss is taken."
        )
        return None
    return LabelSmoother(args.label_smoothing_factor)


def refuse_without_activation_checkpointing(args: Any, model: Any) -> None:
    """Raises where activations cannot be recomputed as asked.

    Raises:
        ConfigError: the model has no switch for it.
    """
    switches = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
    if args.checkpoints_activations and not any(hasattr(model, name) for name in switches):
        raise ConfigError(
            f"gradient_checkpointing=True: {type(model).__name__} has no gradient_checkpointing_enable; leave it out, "
            "and use torch.utils.checkpoint in forward"
        )


def set_log_level(args: Any) -> None:
    """Has Bolide's notes, and transformers' where it is installed, follow log_level; "passive" leaves them alone."""
    if args.log_level == "passive":
        return
    level = args.get_process_log_level()
    logging.getLogger("bolide").setLevel(level)
    if has_transformers():
        logging.getLogger("transformers").setLevel(level)


def prepare_model(trainer: Any) -> None:
    """Switches of the model that hold for training: activation checkpointing, its cache, token ids, compilation."""
    args, model = trainer.args, trainer.model
    if args.tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    if args.checkpoints_activations:
        switch_on_checkpointing(model, args.activation_checkpointing_kwargs or args.gradient_checkpointing_kwargs)
    config: Any = getattr(base_of(model), "config", None)
    if hasattr(config, "use_cache") and not args.use_cache:
        config.use_cache = False
    align_tokens(trainer.processing_class, base_of(model))
    if args.torch_compile and unwrapped(trainer.model_wrapped) is trainer.model_wrapped:
        trainer.model_wrapped = torch.compile(
            model, backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode
        )


def switch_on_checkpointing(model: Any, options: dict[str, Any] | None) -> None:
    """Has a model recompute its activations, by the switch of today where it has it, else by the older one."""
    switch = getattr(model, "activation_checkpointing_enable", None)
    if switch is None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        return
    known, given = parameters_of(switch), options or {}
    own = {name: value for name, value in given.items() if name in known}  # which layers; the rest is torch's
    if "activation_checkpointing_kwargs" in known and len(own) < len(given):
        own["activation_checkpointing_kwargs"] = {name: value for name, value in given.items() if name not in known}
        switch(**own)
    else:
        switch(**given)


def align_tokens(processing_class: Any, model: Any) -> None:
    """Gives the configurations of a model, that of generating too, the tokenizer's special tokens; says which changed.

    Where text may end in several ways, the tokenizer's way becomes the first of them.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    configs = [getattr(model, name, None) for name in ("config", "generation_config")]
    if tokenizer is None or configs[0] is None or not hasattr(tokenizer, "eos_token_id"):
        return
    changed = []
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        known = [getattr(config, name) for config in configs if config is not None and hasattr(config, name)]
        if value is None or all(value == own or (isinstance(own, list) and value in own) for own in known):
            continue
        changed.append(f"{name} {known[0]} -> {value}")
        for config in configs:
            if config is not None and hasattr(config, name):
                own = getattr(config, name)
                ends = own if isinstance(own, list) else [] if own is None else [own]
                several = name == "eos_token_id" and (isinstance(own, list) or config is configs[1])
                setattr(config, name, [value, *(end for end in ends if end != value)] if several else value)
    if changed:
        info(f"The model's configuration takes the tokenizer's special tokens: {', '.join(changed)}.")


def add_hooks(args: Any, model: Any) -> Callable[[], None]:
    """The hooks of a run: noise on embeddings, the watch for what is not finite; returns what takes them away again."""
    remove_noise = add_neftune(args, model)
    if "underflow_overflow" not in args.debug:
        return remove_noise
    watch = Watch(base_of(model))

    def remove() -> None:
        watch.remove()
        remove_noise()

    return remove


def add_neftune(args: Any, model: Any) -> Callable[[], None]:
    """Adds NEFTune's noise to the embeddings while training; returns what takes it away again.

    Uniform noise of alpha / sqrt(length * width), as in "NEFTune: Noisy Embeddings Improve Instruction Finetuning".

    Raises:
        UserCodeError: the model has no input embeddings to ask for.
    """
    alpha = args.neftune_noise_alpha
    if not alpha:
        return lambda: None
    find = getattr(base_of(model), "get_input_embeddings", None)
    if not callable(find):
        raise UserCodeError(
            f"neftune_noise_alpha={alpha}: {type(model).__name__} has no get_input_embeddings; leave it out, or define "
            "that method"
        )

    def with_noise(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return output
        scale = alpha / (output.size(1) * output.size(2)) ** 0.5
        return output + torch.zeros_like(output).uniform_(-scale, scale)

    handle = find().register_forward_hook(with_noise)
    return handle.remove


def use_learning_rate(trainer: Any, rates_then: list[float] | None) -> None:
    """After a resume: the learning rates that this run made hold, where they are others than in the run gone on from.

    Rates that differ by group, and those of an optimizer that a subclass makes, are compared as they were made. A rate
    that a callback set, or the optimizer that was given as an object, is left alone.

    Args:
        trainer: its schedule has the rates of the checkpoint.
        rates_then: the rate of each group as the earlier run made it; None where a checkpoint does not say.
    """
    schedule, optimizer, now = trainer.lr_scheduler, trainer.optimizer, list(trainer._made_rates)
    if trainer._optimizer_is_users or not isinstance(schedule, Schedule):
        return
    then = rates_then or [float(rate) for rate in schedule.base_lrs]
    if len(set(then)) == 1:  # groups without weight decay may have been joined, in one of the two runs
        then = then[:1] * len(now)
    if then == now or len(then) != len(now) or len(schedule.base_lrs) != len(now):
        return
    said = [", ".join(dict.fromkeys(f"{rate:g}" for rate in rates)) for rates in (now, then)]
    info(f"learning_rate is {said[0]} now, and was {said[1]} in the checkpoint: it holds from here on.")
    schedule.base_lrs = now
    for group, rate in zip(optimizer.param_groups, now, strict=True):
        group["initial_lr"] = rate
    schedule.apply()
