"""What a model consists of: layers, parameters, shapes, size. Computes and formats; prints nothing.

Who calls: the ModelSummary callbacks and `bolide.utilities.model_summary`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.hooks import RemovableHandle

from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.messages import warn
from bolide.data.transfer import move_to_device

UNKNOWN_SIZE = "?"
NOT_APPLICABLE = "n/a"
LEFTOVER = "other params"
Row = tuple[str, list[str]]


class LayerSummary:
    """One module of the model: its type, parameters, and the shapes that went through it.

    The shapes are known once a forward pass has run; `detach_hook` stops the watching.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._in_size: str | list[Any] | None = None
        self._out_size: str | list[Any] | None = None
        self._handle = self._register_hook()

    def _register_hook(self) -> RemovableHandle | None:
        if isinstance(self._module, torch.jit.ScriptModule):
            return None

        def note(_: nn.Module, inputs: Any, output: Any) -> None:
            if len(inputs) == 1:
                inputs = inputs[0]
            self._in_size, self._out_size = parse_batch_shape(inputs), parse_batch_shape(output)
            self.detach_hook()

        return self._module.register_forward_hook(note)

    def detach_hook(self) -> None:
        """Stops watching; the first forward pass does it by itself."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    @property
    def in_size(self) -> str | list[Any]:
        """The shape, or nested list of shapes, of what went in; "?" before a forward pass."""
        return self._in_size or UNKNOWN_SIZE

    @property
    def out_size(self) -> str | list[Any]:
        """The shape, or nested list of shapes, of what came out; "?" before a forward pass."""
        return self._out_size or UNKNOWN_SIZE

    @property
    def layer_type(self) -> str:
        """The class of the module."""
        return type(self._module).__name__

    @property
    def num_parameters(self) -> int:
        """The number of parameters; those without a shape yet count as none."""
        return sum(_size(p) for p in self._module.parameters())

    @property
    def training(self) -> bool:
        """Whether the module is in training mode."""
        return self._module.training


class ModelSummary:
    """The layers of `model` down to `max_depth`, and the totals over all of it.

    Where `model.example_input_array` is set, the model runs on it once, in evaluation mode, without gradients and
    without touching the random state, so that shapes and FLOPs are known.

    Args:
        model: the LightningModule.
        max_depth: 1: its direct children; 2: theirs as well, and so on; -1: all; 0: totals only.

    Raises:
        ConfigError: another `max_depth`.
        UserCodeError: the model does not run on its `example_input_array`.

    Example::

        print(ModelSummary(model, max_depth=2))
    """

    def __init__(self, model: nn.Module, max_depth: int = 1) -> None:
        if not isinstance(max_depth, int) or max_depth < -1:
            raise ConfigError(f"max_depth={max_depth!r} must be -1 (all layers), 0 (totals only) or a depth")
        self._model = model
        self._max_depth = max_depth
        self._flops_by_name: dict[str, dict[Any, int]] = {}
        self._layer_summary = self.summarize()

    @property
    def named_modules(self) -> list[tuple[str, nn.Module]]:
        """The modules that have a row, by name."""
        if self._max_depth == 0:
            return []
        if self._max_depth == 1:
            return list(self._model.named_children())
        modules = list(self._model.named_modules())[1:]
        return [(n, m) for n, m in modules if self._max_depth == -1 or n.count(".") < self._max_depth]

    @property
    def layer_names(self) -> list[str]:
        """The names of the rows."""
        return list(self._layer_summary)

    @property
    def layer_types(self) -> list[str]:
        """The classes of the rows' modules."""
        return [layer.layer_type for layer in self._layer_summary.values()]

    @property
    def in_sizes(self) -> list[Any]:
        """What went into each row's module."""
        return [layer.in_size for layer in self._layer_summary.values()]

    @property
    def out_sizes(self) -> list[Any]:
        """What came out of each row's module."""
        return [layer.out_size for layer in self._layer_summary.values()]

    @property
    def param_nums(self) -> list[int]:
        """The number of parameters of each row's module."""
        return [layer.num_parameters for layer in self._layer_summary.values()]

    @property
    def training_modes(self) -> list[bool]:
        """Whether each row's module is in training mode."""
        return [layer.training for layer in self._layer_summary.values()]

    @property
    def total_training_modes(self) -> dict[str, int]:
        """How many modules below the model are in "train" and in "eval" mode."""
        modes = [module.training for module in self._model.modules()][1:]
        return {"train": modes.count(True), "eval": modes.count(False)}

    @property
    def total_parameters(self) -> int:
        """The number of parameters; a shared one counts once."""
        return sum(_size(p) for p in self._model.parameters())

    @property
    def trainable_parameters(self) -> int:
        """The number of parameters that get gradients."""
        return sum(_size(p) for p in self._model.parameters() if p.requires_grad)

    @property
    def total_layer_params(self) -> int:
        """The sum over the rows; nested rows count again."""
        return sum(self.param_nums)

    @property
    def model_size(self) -> float:
        """The parameters' size in MB (10^6 bytes), each in its own dtype."""
        return sum(n * p.element_size() for p in self._model.parameters() if (n := _size(p))) / 1e6

    @property
    def flop_counts(self) -> dict[str, dict[Any, int]]:
        """FLOPs of the example's forward pass, by row and operation."""
        return {name: self._flops_by_name.get(name, {}) for name in self.layer_names}

    @property
    def total_flops(self) -> int:
        """FLOPs of the example's forward pass; 0 without an example."""
        return sum(self._flops_by_name.get("", {}).values())

    def summarize(self) -> dict[str, LayerSummary]:
        """Makes the rows, and runs the example where there is one."""
        rows = {name: LayerSummary(module) for name, module in self.named_modules}
        if any(isinstance(p, UninitializedParameter) for p in self._model.parameters()):
            warn(
                "Some layers are lazy and have no parameters yet; the summary counts none for them. Set "
                "`self.example_input_array` to have them counted."
            )
        try:
            if getattr(self._model, "example_input_array", None) is not None:
                self._forward_example_input()
        finally:
            for row in rows.values():
                row.detach_hook()
        return rows

    def _forward_example_input(self) -> None:
        """Runs the model on its example, counting FLOPs."""
        from torch.utils.flop_counter import FlopCounterMode

        model = self._model
        counter = FlopCounterMode(display=False)
        try:
            with torch.no_grad(), evaluating(model), _own_random_state(model), counter, _precision(model):
                run_on_example(model, model.example_input_array)
        except Exception as error:
            raise UserCodeError(
                f"The model summary runs {type(model).__name__}.forward on `example_input_array`, and that failed: "
                f"{error}. Mend the example, remove it, or write Trainer(enable_model_summary=False)."
            ) from error
        root = type(model).__name__
        for name, counts in counter.get_flop_counts().items():
            if name == "Global":
                self._flops_by_name[""] = dict(counts)
            elif name.startswith(root + "."):
                self._flops_by_name[name[len(root) + 1 :]] = dict(counts)

    def _get_summary_data(self) -> list[Row]:
        """The columns of the table: heading and cells."""
        flops = [sum(counts.values()) for counts in self.flop_counts.values()]
        columns: list[Row] = [
            (" ", [str(i) for i in range(len(self.layer_names))]),
            ("Name", self.layer_names),
            ("Type", self.layer_types),
            ("Params", [get_human_readable_count(n) for n in self.param_nums]),
            ("Mode", ["train" if training else "eval" for training in self.training_modes]),
            ("FLOPs", [get_human_readable_count(n) for n in flops]),
        ]
        if getattr(self._model, "example_input_array", None) is not None:
            columns.append(("In sizes", [str(size) for size in self.in_sizes]))
            columns.append(("Out sizes", [str(size) for size in self.out_sizes]))
        top_level = sum(n for n, name in zip(self.param_nums, self.layer_names, strict=True) if "." not in name)
        leftover = self.total_parameters - min(top_level, self.total_parameters)
        if leftover > 0:
            own = {" ": " ", "Name": LEFTOVER, "Params": get_human_readable_count(leftover)}
            columns = [(head, [*cells, own.get(head, NOT_APPLICABLE)]) for head, cells in columns]
        return columns

    def __str__(self) -> str:
        return format_summary_table(
            self.total_parameters,
            self.trainable_parameters,
            self.model_size,
            self.total_training_modes,
            self.total_flops,
            *self._get_summary_data(),
        )

    def __repr__(self) -> str:
        return str(self)


def summarize(lightning_module: nn.Module, max_depth: int = 1) -> ModelSummary:
    """The summary of a module; see `ModelSummary`."""
    return ModelSummary(lightning_module, max_depth=max_depth)


def format_summary_table(
    total_parameters: int,
    trainable_parameters: int,
    model_size: float,
    total_training_modes: dict[str, int],
    total_flops: int,
    *columns: Row,
) -> str:
    """The table as text: a row a layer, then the totals."""
    widths = [max([len(head), *(len(cell) for cell in cells)]) for head, cells in columns]
    count = len(columns[0][1]) if columns else 0
    rule = "-" * (sum(widths) + 3 * (len(widths) - 1))
    lines = [" | ".join(head.ljust(width) for (head, _), width in zip(columns, widths, strict=True)), rule]
    for i in range(count):
        lines.append(" | ".join(cells[i].ljust(width) for (_, cells), width in zip(columns, widths, strict=True)))
    lines.append(rule)
    for text, value in summary_totals(
        total_parameters, trainable_parameters, model_size, total_training_modes, total_flops
    ):
        lines.append(f"{value:<10}{text}")
    return "\n".join(lines)


def summary_totals(
    total_parameters: int,
    trainable_parameters: int,
    model_size: float,
    total_training_modes: dict[str, int],
    total_flops: int,
) -> list[tuple[str, str]]:
    """The lines below the table: what, and how much."""
    return [
        ("Trainable params", get_human_readable_count(trainable_parameters)),
        ("Non-trainable params", get_human_readable_count(total_parameters - trainable_parameters)),
        ("Total params", get_human_readable_count(total_parameters)),
        ("Total estimated model params size (MB)", get_formatted_model_size(model_size)),
        ("Modules in train mode", str(total_training_modes["train"])),
        ("Modules in eval mode", str(total_training_modes["eval"])),
        ("Total FLOPs", get_human_readable_count(total_flops)),
    ]


def get_human_readable_count(number: int) -> str:
    """A count in units of a thousand: 1234 is "1.2 K", 3e9 "3.0 B"; below a thousand as it is.

    Example::

        get_human_readable_count(12345)  # '12.3 K'
    """
    if number < 0:
        raise ValueError(f"{number} is no count")
    units = (" ", "K", "M", "B", "T")
    digits = math.floor(math.log10(number)) + 1 if number > 0 else 1
    group = min(math.ceil(digits / 3), len(units)) - 1
    scaled = number / 1000**group
    if group == 0 or scaled >= 100:
        return f"{int(scaled):,d} {units[group]}"
    return f"{scaled:,.1f} {units[group]}"


def get_formatted_model_size(total_model_size: float) -> str:
    """Megabytes with three decimals."""
    return f"{total_model_size:,.3f}"


def parse_batch_shape(batch: Any) -> str | list[Any]:
    """The shape of a tensor, a list of those of a sequence, or "?"."""
    if hasattr(batch, "shape"):
        return list(batch.shape)
    if isinstance(batch, (list, tuple)):
        return [parse_batch_shape(item) for item in batch]
    return UNKNOWN_SIZE


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """All modules are in evaluation mode while this is open; each gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def run_on_example(model: nn.Module, example: Any) -> Any:
    """Calls the model on its example: a tuple gives the arguments, a dictionary the keywords, else it is the one."""
    example = move_to_device(example, _device(model))
    plugin = getattr(_trainer(model), "precision_plugin", None)
    if plugin is not None:
        example = plugin.convert_input(example)
    if isinstance(example, tuple):
        return model(*example)
    if isinstance(example, dict):
        return model(**example)
    return model(example)


def _trainer(model: nn.Module) -> Any:
    """The trainer that runs the model, or None."""
    held = getattr(model, "_trainer", None)
    return held() if isinstance(held, weakref.ref) else held


def _precision(model: nn.Module) -> Any:
    plugin = getattr(_trainer(model), "precision_plugin", None)
    return nullcontext() if plugin is None else plugin.forward_context()


def _device(model: nn.Module) -> torch.device:
    first = next((p for p in model.parameters()), None)
    return torch.device("cpu") if first is None else first.device


def _own_random_state(model: nn.Module) -> Any:
    device = _device(model)
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _size(parameter: Tensor) -> int:
    if isinstance(parameter, UninitializedParameter):
        return 0
    return int(getattr(parameter, "ds_numel", parameter.numel()))  # DeepSpeed's stage 3 leaves the parameter empty
