"""What a batch's loss weighs in its optimizer step, so that accumulation gives the big batch's gradient.

Owns where a model's output has its loss, the counting of labels, the finding out whether a loss uses that count, and
label smoothing. Who calls: the adapter and the trainer's compute_loss.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bolide.core.errors import UserCodeError
from bolide.transformers.evaluation import batch_size_of
from bolide.transformers.weights import is_peft, unwrapped

IGNORE = -100


class CountProbe(Tensor):
    """The label count of a step, that notices whether a loss is computed with it.

    Handing it on or moving it is no use; arithmetic with it, or reading its number, is.
    """

    used = False

    @classmethod
    def of(cls, count: Tensor) -> CountProbe:
        """A probe with the value of `count`."""
        return count.detach().as_subclass(cls)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        probes = [arg for arg in args if isinstance(arg, CountProbe)]
        if name in ("to", "float", "clone", "detach") and isinstance(result, Tensor) and probes:
            moved = result.as_subclass(cls)
            moved.origin = getattr(probes[0], "origin", probes[0])  # type: ignore[attr-defined]
            return moved
        if name not in ("__get__", "__repr__", "dim", "size", "is_floating_point"):
            for probe in probes:
                getattr(probe, "origin", probe).used = True
        return result


def takes(function: Any, name: str) -> bool:
    """Whether a function has a parameter of that name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def call(override: Callable[..., Any], *arguments: Any) -> Any:
    """Calls an override with as many arguments as it takes: in earlier releases these methods had fewer."""
    kinds = [parameter.kind for parameter in inspect.signature(override).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return override(*arguments)
    taken = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return override(*arguments[: sum(kind in taken for kind in kinds)])


def no_loss(found: Any, compute_loss: Any) -> UserCodeError:
    """The error for what is no loss."""
    hint = "; return (loss, outputs) where return_outputs is true only" if isinstance(found, tuple) else ""
    name = getattr(compute_loss, "__qualname__", "compute_loss")
    return UserCodeError(f"{name} returned a {type(found).__name__}, and must return the loss, a tensor{hint}")


def one_loss(loss: Tensor, model: Any) -> Tensor:
    """The loss as one number that the model's parameters had a part in; a vector of losses counts by its mean.

    Raises:
        UserCodeError: no trainable parameter had a part in it.
    """
    if loss.requires_grad:
        return loss.mean() if loss.dim() else loss
    name, base = type(base_of(model)).__name__, unwrapped(model)
    if any(parameter.requires_grad for parameter in base.parameters()):
        raise UserCodeError(
            f"The loss has no gradient: no trainable parameter of {name} had a part in it. Compute it from the model's "
            "output without .detach(), .item() or torch.no_grad(). Where the first layers are frozen and gradients are "
            "checkpointed, call model.enable_input_require_grads() before"
        )
    if is_peft(base):
        raise UserCodeError(
            "The PEFT model has no parameter that trains. Load its adapter with PeftModel.from_pretrained(model, "
            "folder, is_trainable=True), or make one with get_peft_model(model, config)"
        )
    raise UserCodeError(
        f"No parameter of {name} trains: requires_grad is False for all of them. Set it, as with "
        "model.classifier.requires_grad_(True), for the parts to train"
    )


def can_be_given(function: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a function can be called with such arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def takes_any(function: Any) -> bool:
    """Whether a function takes any keyword."""
    try:
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return False
    return inspect.Parameter.VAR_KEYWORD in kinds


def base_of(model: Any) -> Any:
    """The user's model within wrappers and PEFT."""
    model = unwrapped(model)
    return unwrapped(model.get_base_model()) if is_peft(model) and hasattr(model, "get_base_model") else model


def accepts_count(model: Any) -> bool:
    """Whether the model's forward can be given `num_items_in_batch`."""
    base = base_of(model)
    declared = getattr(base, "accepts_loss_kwargs", None)
    if declared is not None:
        return bool(declared)
    return takes(base.forward, "num_items_in_batch") or takes_any(base.forward)


def is_causal(model: Any) -> bool:
    """Whether the model's loss predicts each next token, so that the first label of a row counts for nothing."""
    base = base_of(model)
    kind = getattr(base, "loss_type", None)
    if kind is None and hasattr(base, "loss_function"):  # some of transformers' do not say, and mean it
        return type(base).__name__.endswith(("LMHeadModel", "ForCausalLM"))
    return bool(kind == "ForCausalLM")


def labels_in(batch: Any, shifted: bool) -> Tensor | None:
    """How many labels of a batch count (0-dim, on its device); None where it has none."""
    if not isinstance(batch, Mapping):
        return None
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
        if shifted and isinstance(labels, Tensor) and labels.dim() > 1:
            labels = labels[..., 1:]
    return labels.ne(IGNORE).sum() if isinstance(labels, Tensor) else None


def shares(batches: Sequence[Any], shifted: bool) -> tuple[list[Any], Tensor | None]:
    """What each batch's mean loss weighs in the step, and how many labels count in all of them.

    By labels where all batches have them, else by samples, else alike.
    """
    counts = [labels_in(batch, shifted) for batch in batches]
    if all(count is not None for count in counts):
        total = counts[0] if len(counts) == 1 else torch.stack(counts).sum()  # type: ignore[arg-type]
        least = total.clamp(min=1)  # type: ignore[union-attr]
        return [count / least for count in counts if count is not None], total
    sizes = [batch_size_of(batch) for batch in batches]
    if any(size is None for size in sizes):
        return [1 / len(batches)] * len(batches), None
    samples = sum(size or 0 for size in sizes)
    return [(size or 0) / max(1, samples) for size in sizes], None


def loss_in(outputs: Any, inputs: Any) -> Tensor:
    """The loss in what the model returned for `inputs`.

    Raises:
        UserCodeError: there is none.
    """
    if isinstance(outputs, dict):
        if outputs.get("loss") is not None:
            loss: Tensor = outputs["loss"]
            return loss
        given = [str(name) for name, value in outputs.items() if value is not None]
        raise UserCodeError(
            f"The model returned {', '.join(given) or 'nothing'} and no 'loss' for the inputs "
            f"{', '.join(map(str, inputs))}. Give labels in the batch, return a loss from forward, or write "
            "Trainer(compute_loss_func=...)"
        )
    found = outputs if isinstance(outputs, Tensor) else outputs[0]
    if isinstance(found, Tensor):
        return found
    raise UserCodeError(
        f"The model returned a {type(outputs).__name__} that begins with a {type(found).__name__}, where the loss is "
        "expected; return (loss, ...), a dictionary with 'loss', or write Trainer(compute_loss_func=...)"
    )


class LabelSmoother:
    """Cross entropy with a part of the target spread over all classes.

    Args:
        epsilon: that part.
        ignore_index: labels that count for nothing.
    """

    def __init__(self, epsilon: float = 0.1, ignore_index: int = IGNORE) -> None:
        self.epsilon, self.ignore_index = epsilon, ignore_index

    def __call__(self, outputs: Any, labels: Tensor, shift_labels: bool = False) -> Tensor:
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        logs = F.log_softmax(logits, dim=-1)
        counts = labels.ne(self.ignore_index)
        picked = logs.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        exact = -(picked * counts).sum()
        even = -(logs.sum(dim=-1, dtype=torch.float32) * counts).sum()
        active = counts.sum()
        return (1 - self.epsilon) * exact / active + self.epsilon * even / (active * logits.shape[-1])
