"""Old Trainer arguments, one row each: what it became, how it is translated, or what to write instead.

Owns the table of arguments that left Lightning's Trainer between 0.x and 2.x, and of old values of arguments that
stayed. `translate` applies it, `docs_table` prints it. Who calls: the Trainer, with the arguments that it does not
know. Hooks and attributes that went are in compat/hooks_args.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bolide.compat import old_converters as to
from bolide.compat.old_converters import Context, Outcome
from bolide.core.config import RunConfig
from bolide.core.errors import ConfigError, did_you_mean
from bolide.core.messages import warn

Status = Literal["exact", "approximate", "ignored", "error"]
"""exact: the same meaning; approximate: nearly, the warning says how; ignored: it has no effect; error: refused."""

TRAINER_ARGUMENTS: tuple[str, ...] = tuple(item.name for item in fields(RunConfig))
"""All arguments that the Trainer has today."""


@dataclass(frozen=True)
class Row:
    """One old argument: its name, what it maps to in words, its converter, its status, and why or how it differs."""

    name: str
    maps_to: str
    convert: Callable[[Any, Context], Outcome]
    status: Status = "exact"
    message: str = ""


def _table(*rows: Row) -> dict[str, Row]:
    return {row.name: row for row in rows}


ROWS: dict[str, Row] = _table(
    Row("gpus", 'accelerator="gpu", devices=N', to.gpus),
    Row("tpu_cores", "nothing", to.refuse("TPUs are not supported. Leave it out."), "error"),
    Row("ipus", "nothing", to.refuse("Graphcore devices are not supported. Leave it out."), "error"),
    Row("hpus", "nothing", to.refuse("Habana devices are not supported. Leave it out."), "error"),
    Row("num_processes", 'accelerator="cpu", devices=N, strategy="ddp"', to.num_processes),
    Row(
        "auto_select_gpus", 'devices="auto"', to.ignore('devices="auto"'), "ignored",
        "To choose free GPUs write devices=find_usable_cuda_devices(n) (bolide.accelerators).",
    ),
    Row("distributed_backend", "strategy=", to.distributed_backend),
    Row("amp_backend", 'precision="16-mixed"', to.amp_backend, "ignored", "Mixed precision is PyTorch's own."),
    Row("amp_level", 'precision="16-mixed"', to.ignore(""), "ignored", "It was a setting of NVIDIA's apex."),
    Row("resume_from_checkpoint", "trainer.fit(model, ckpt_path=path)", to.resume_from_checkpoint),
    Row("checkpoint_callback", "enable_checkpointing=, callbacks=[ModelCheckpoint(...)]", to.checkpoint_callback),
    Row("early_stop_callback", "callbacks=[EarlyStopping(monitor=...)]", to.early_stop_callback),
    Row("weights_save_path", "callbacks=[ModelCheckpoint(dirpath=path)]", to.weights_save_path, "approximate"),
    Row("weights_summary", "enable_model_summary=, callbacks=[ModelSummary(max_depth=N)]", to.weights_summary),
    Row("progress_bar_refresh_rate", "enable_progress_bar=False, callbacks=[TQDMProgressBar(refresh_rate=N)]",
        to.progress_bar_refresh_rate),
    Row("process_position", "callbacks=[TQDMProgressBar(process_position=N)]", to.process_position),
    Row("auto_lr_find", "Tuner(trainer).lr_find(model)", to.refuse_unless_off(
        "Lightning 2 has Tuner(trainer).lr_find(model), which this version of Bolide does not build yet: leave the "
        "argument out and set the learning rate yourself.",
        "auto_lr_find"), "error"),
    Row("auto_scale_batch_size", "Tuner(trainer).scale_batch_size(model)", to.refuse_unless_off(
        "Lightning 2 has Tuner(trainer).scale_batch_size(model), which this version of Bolide does not build yet: "
        "leave the argument out and set the batch size yourself.",
        "auto_scale_batch_size"), "error"),
    Row("truncated_bptt_steps", "manual optimization", to.refuse_unless_off(
        "Set self.automatic_optimization = False and split the sequence in training_step, with one "
        "self.manual_backward and optimizer.step() for each part.", "truncated_bptt_steps"), "error"),
    Row("reload_dataloaders_every_epoch", "reload_dataloaders_every_n_epochs=1", to.reload_every_epoch),
    Row("replace_sampler_ddp", "use_distributed_sampler=", to.rename("use_distributed_sampler")),
    Row("multiple_trainloader_mode", "CombinedLoader(loaders, mode=...)", to.multiple_trainloader_mode, "error"),
    Row("stochastic_weight_avg", "callbacks=[StochasticWeightAveraging(swa_lrs=1e-2)]", to.refuse_unless_off(
        "Lightning 2 has callbacks=[StochasticWeightAveraging(swa_lrs=1e-2)], which this version of Bolide does not "
        "build yet: leave the argument out, or average with torch.optim.swa_utils.AveragedModel.",
        "stochastic_weight_avg"), "error"),
    Row("track_grad_norm", "self.log_dict(grad_norm(self, p)) in on_before_optimizer_step", to.track_grad_norm),
    Row("terminate_on_nan", "detect_anomaly=True", to.terminate_on_nan, "approximate",
        "detect_anomaly raises where the backward pass makes a NaN, and is slower."),
    Row("log_gpu_memory", "callbacks=[DeviceStatsMonitor()]", to.ignore("callbacks=[DeviceStatsMonitor()]"), "ignored"),
    Row("gpu_metrics", "callbacks=[DeviceStatsMonitor()]", to.ignore("callbacks=[DeviceStatsMonitor()]"), "ignored"),
    Row("flush_logs_every_n_steps", "logger=CSVLogger(..., flush_logs_every_n_steps=N)",
        to.ignore("logger=CSVLogger(..., flush_logs_every_n_steps=N)"), "ignored"),
    Row("row_log_interval", "log_every_n_steps=N", to.rename("log_every_n_steps")),
    Row("log_save_interval", "logger=CSVLogger(..., flush_logs_every_n_steps=N)",
        to.ignore("logger=CSVLogger(..., flush_logs_every_n_steps=N)"), "ignored"),
    Row("move_metrics_to_cpu", "torchmetrics' compute_on_cpu=True", to.ignore("MyMetric(compute_on_cpu=True)"),
        "ignored"),
    Row("prepare_data_per_node", "self.prepare_data_per_node of the module or datamodule", to.prepare_data_per_node,
        "error"),
    Row("val_percent_check", "limit_val_batches=", to.rename("limit_val_batches", float)),
    Row("train_percent_check", "limit_train_batches=", to.rename("limit_train_batches", float)),
    Row("test_percent_check", "limit_test_batches=", to.rename("limit_test_batches", float)),
    Row("overfit_pct", "overfit_batches=", to.rename("overfit_batches", float)),
    Row("nb_gpu_nodes", "num_nodes=", to.rename("num_nodes")),
    Row("num_gpu_nodes", "num_nodes=", to.rename("num_nodes")),
    Row("max_nb_epochs", "max_epochs=", to.rename("max_epochs")),
    Row("min_nb_epochs", "min_epochs=", to.rename("min_epochs")),
    Row("nb_sanity_val_steps", "num_sanity_val_steps=", to.rename("num_sanity_val_steps")),
    Row("gradient_clip", "gradient_clip_val=", to.rename("gradient_clip_val")),
    Row("default_save_path", "default_root_dir=", to.rename("default_root_dir")),
    Row("show_progress_bar", "enable_progress_bar=", to.rename("enable_progress_bar", bool)),
    Row("use_amp", 'precision="16-mixed"', to.use_amp),
    Row("print_nan_grads", "detect_anomaly=True", to.rename("detect_anomaly", bool), "approximate",
        "detect_anomaly raises where the backward pass makes a NaN, and is slower."),
    Row("automatic_optimization", "self.automatic_optimization of the module", to.automatic_optimization, "error"),
    Row("enable_pl_optimizer", "nothing", to.ignore(""), "ignored", "self.optimizers() always gives the wrapped ones."),
)  # fmt: skip
"""Arguments that are no longer there."""

VALUE_ROWS: dict[str, Row] = _table(
    Row("accelerator", 'strategy="ddp"', to.old_accelerator),
    Row("strategy", 'strategy="fsdp", or what the message says', to.old_strategy, "approximate"),
    Row("plugins", "strategy=", to.old_plugins),
    Row("precision", '"16-mixed", "bf16-mixed"', to.old_precision),
    Row("accumulate_grad_batches", "callbacks=[GradientAccumulationScheduler({epoch: factor})]",
        to.old_accumulation),
    Row("max_steps", "max_steps=-1", to.old_max_steps),
)  # fmt: skip
"""Arguments that are still there, and old values of them. The converter answers UNTOUCHED for a value of today."""


@dataclass
class _Translation:
    """What was gathered so far: new arguments with the old spelling that each came from, and what was said."""

    given: dict[str, Any]
    new: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    additions: list[Any] = field(default_factory=list)

    def take(self, row: Row, value: Any, outcome: Outcome) -> None:
        spelled = f"{row.name}={value!r}"
        if outcome.problem:
            self.problems.append(f"Trainer({spelled}) is no longer there: {outcome.problem}")
            return
        for argument, new in outcome.new.items():
            self._set(argument, new, spelled)
        self.additions += outcome.callbacks
        parts = [f"Trainer({spelled}) is an old spelling"]
        parts.append(f"; write {outcome.write} instead." if outcome.write else "; leave it out.")
        if row.status == "ignored" and outcome.write:
            parts.append(" It is ignored.")
        parts += [f" {text}" for text in (row.message, outcome.note) if text]
        self.warnings.append("".join(parts))

    def _set(self, argument: str, value: Any, spelled: str) -> None:
        before = self.new.get(argument, self.given.get(argument))
        there = argument in self.new or argument in self.given
        if there and before not in (value, "auto"):
            other = self.origin.get(argument, f"{argument}={before!r}")
            if value == "auto":
                return
            self.problems.append(
                f"Trainer({spelled}) means {argument}={value!r}, which contradicts {other}: leave one of them out"
            )
            return
        self.new[argument] = value
        self.origin[argument] = spelled


METHOD_ARGUMENTS = {
    "fit": {"train_dataloader": "train_dataloaders", "val_dataloader": "val_dataloaders"},
    "validate": {"val_dataloaders": "dataloaders"},
    "test": {"test_dataloaders": "dataloaders"},
}
"""Old arguments of the Trainer's methods, and what they are called today."""


def method_arguments(method: str, old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given`, with the `old` arguments of a method under the names of today, each with a warning.

    Args:
        method: "fit", "validate" or "test".
        old: the keyword arguments that the method does not have.
        given: those that it has and that old ones stand for; None where not given.

    Raises:
        TypeError: an argument that the method never had.
        ConfigError: the old one and the new one are both given.
    """
    found = dict(given)
    for name, value in old.items():
        today = METHOD_ARGUMENTS[method].get(name)
        if today is None:
            hint = did_you_mean(name, [*given, "model", "datamodule", "ckpt_path", "weights_only"])
            raise TypeError(f"trainer.{method}() has no argument {name!r}.{hint}")
        if found[today] is not None:
            raise ConfigError(f"trainer.{method}({name}=...) is the old name of {today}=, which is given, too")
        warn(f"trainer.{method}({name}=...): write {today}=...", FutureWarning, stacklevel=3)
        found[today] = value
    return found


def translate(
    old: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], list[str], list[Any]]:
    """Old Trainer arguments as those of today.

    Args:
        old: the keyword arguments that the Trainer does not have.
        given: those that it has and that were given; old values among them are translated too.

    Returns:
        The new arguments, which replace those of the same name in `given` ("resume_from_checkpoint" among them stands
        for the `ckpt_path` of the next fit); what is wrong, one text each; warnings, one for each old spelling; and
        callbacks to add.
    """
    context = Context(dict(old), dict(given))
    current = dict(given)
    done = _Translation(current)
    for name, row in VALUE_ROWS.items():
        if name not in given:
            continue
        outcome = row.convert(given[name], context)
        if outcome is to.UNTOUCHED:
            continue
        current.pop(name)
        done.take(row, given[name], outcome)
        if outcome.problem:
            done.new[name] = to.NEUTRAL[name]  # so that the same value is not complained about twice
    for name, value in old.items():
        row_or_none = ROWS.get(name)
        if row_or_none is None:
            done.problems.append(unknown_argument(name))
        else:
            done.take(row_or_none, value, row_or_none.convert(value, context))
    for name in VALUE_ROWS:
        if name in given and name not in current:
            done.new.setdefault(name, to.NEUTRAL[name])
    return done.new, done.problems, done.warnings, done.additions


def unknown_argument(name: str) -> str:
    """What is said about an argument that never was."""
    hint = did_you_mean(name, (*TRAINER_ARGUMENTS, *ROWS))
    return f"Trainer has no argument {name!r}.{hint or ' The documentation of Trainer lists them all.'}"


def docs_table() -> str:
    """The table of old arguments as Markdown."""
    lines = ["| old argument | write today | what happens |", "|---|---|---|"]
    for row in ROWS.values():
        lines.append(f"| `{row.name}=` | {_code(row.maps_to)} | {_happens(row)} |")
    for row in VALUE_ROWS.values():
        lines.append(f"| old values of `{row.name}=` | {_code(row.maps_to)} | {_happens(row)} |")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return f"`{text}`" if "=" in text or "(" in text else text


def _happens(row: Row) -> str:
    words = {
        "exact": "accepted, one warning",
        "approximate": "accepted with nearly the same meaning, one warning",
        "ignored": "ignored, one warning",
        "error": "refused, unless it was off",
    }
    return words[row.status] + (f". {row.message}" if row.message else "")
