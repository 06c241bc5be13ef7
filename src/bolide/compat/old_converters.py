"""One function for each old Trainer argument: its value in today's arguments.

Pure, except that a callback which takes the argument's place is made. Who calls: compat/lightning_args.py's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bolide.core.config import PRECISION_ALIASES


@dataclass(frozen=True)
class Context:
    """All arguments of the call: those of old, and those of today that were given."""

    old: dict[str, Any]
    given: dict[str, Any]

    def has_callback(self, class_name: str) -> bool:
        """Whether a callback of that class, or of a sub class, was given."""
        callbacks = self.given.get("callbacks") or []
        callbacks = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        return any(class_name in {base.__name__ for base in type(callback).__mro__} for callback in callbacks)


@dataclass(frozen=True)
class Outcome:
    """What became of one value: arguments and callbacks, how it is written today, or why it is refused."""

    new: dict[str, Any] = field(default_factory=dict)
    write: str = ""
    note: str = ""
    problem: str = ""
    callbacks: tuple[Any, ...] = ()


Converter = Callable[[Any, Context], Outcome]

UNTOUCHED = Outcome(note="a value of today")
NEUTRAL: dict[str, Any] = {
    "accelerator": "auto", "strategy": "auto", "plugins": None, "precision": None, "accumulate_grad_batches": 1,
    "max_steps": -1,
}  # fmt: skip
"""What an argument is set to when its old value went elsewhere or was refused."""

OLD_STRATEGIES: dict[str, str] = {
    "dp": "ddp", "ddp_sharded": "fsdp", "ddp_sharded_spawn": "fsdp", "ddp_sharded_find_unused_parameters_false": "fsdp",
    "ddp_fully_sharded": "fsdp", "fsdp_native": "fsdp", "fsdp_native_full_shard_offload": "fsdp_cpu_offload",
    "fairscale": "fsdp",
}  # fmt: skip
"""Strategy names with a successor."""

DEAD_STRATEGIES: dict[str, str] = {
    "ddp2": 'Write: strategy="ddp".',
    "horovod": 'Write: strategy="ddp".',
    "bagua": 'Write: strategy="ddp".',
    "colossalai": 'Write: strategy="fsdp" or strategy="deepspeed_stage_3".',
    "hivemind": 'Write: strategy="ddp".',
    "collaborative": 'Write: strategy="ddp".',
    "tpu_spawn": "TPUs are not supported. Leave it out.",
    "tpu_spawn_debug": "TPUs are not supported. Leave it out.",
    "hpu_parallel": "Habana devices are not supported. Leave it out.",
    "hpu_single": "Habana devices are not supported. Leave it out.",
    "ipu_strategy": "Graphcore devices are not supported. Leave it out.",
}
"""Strategy names without one, and what to write."""

OLD_ACCELERATORS = (
    "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_cpu", "deepspeed", *OLD_STRATEGIES, *DEAD_STRATEGIES,
)  # fmt: skip
"""What `accelerator=` took when it meant the strategy."""


# ---------------------------------------------------------------------------------------------- makers of converters


def refuse(advice: str) -> Converter:
    """A converter that refuses every value but None, 0 and False."""
    return refuse_unless_off(advice, "")


def refuse_unless_off(advice: str, name: str) -> Converter:
    """A converter that refuses a value that is on; `advice` says what to write."""

    def convert(value: Any, context: Context) -> Outcome:
        return Outcome(problem=advice) if value else Outcome(note="It was off." if name else "")

    return convert


def ignore(write: str) -> Converter:
    """A converter that drops the value; `write` says what took its place."""

    def convert(value: Any, context: Context) -> Outcome:
        return Outcome(write=write if value else "")

    return convert


def rename(argument: str, kind: Callable[[Any], Any] | None = None) -> Converter:
    """A converter for an argument that has another name today; None is left out."""

    def convert(value: Any, context: Context) -> Outcome:
        if value is None:
            return Outcome()
        new = kind(value) if kind is not None else value
        return Outcome({argument: new}, f"{argument}={new!r}")

    return convert


# ------------------------------------------------------------------------------------------- devices and strategies


def gpus(value: Any, context: Context) -> Outcome:
    """A number of GPUs, their ids, or -1; 0 and None meant the CPU."""
    if value is None:
        return Outcome()
    if value in (0, "0", "") or (isinstance(value, (list, tuple)) and not value):
        return Outcome({"accelerator": "cpu"}, 'accelerator="cpu"')
    devices: Any = list(value) if isinstance(value, tuple) else value
    if isinstance(value, str) and value.strip().lstrip("-").isdigit():
        devices = int(value)
    return Outcome({"accelerator": "gpu", "devices": devices}, f'accelerator="gpu", devices={devices!r}')


def num_processes(value: Any, context: Context) -> Outcome:
    """Processes on the CPU; 1 was the default."""
    if value in (None, 1):
        return Outcome()
    if context.old.get("gpus"):
        return Outcome(note="With gpus= it had no effect.")
    new = {"accelerator": "cpu", "devices": value, "strategy": "ddp"}
    return Outcome(new, f'accelerator="cpu", devices={value!r}, strategy="ddp"')


def distributed_backend(value: Any, context: Context) -> Outcome:
    """The strategy's oldest name."""
    if value is None:
        return Outcome()
    outcome = _strategy_of(value)
    return outcome if outcome is not UNTOUCHED else Outcome({"strategy": value}, f"strategy={value!r}")


def old_strategy(value: Any, context: Context) -> Outcome:
    """Names of strategies that were renamed or that are gone."""
    return UNTOUCHED if value is None or not isinstance(value, str) else _strategy_of(value)


def _strategy_of(name: Any) -> Outcome:
    if name == "ddp_cpu":
        return Outcome({"accelerator": "cpu", "strategy": "ddp"}, 'accelerator="cpu", strategy="ddp"')
    if name in OLD_STRATEGIES:
        new = OLD_STRATEGIES[name]
        why = "PyTorch's own sharding took the place of FairScale's."
        if name == "dp":
            why = "DataParallel is gone: a process runs for each device, and batch_size counts for one device."
        return Outcome({"strategy": new}, f'strategy="{new}"', why)
    if name in DEAD_STRATEGIES:
        return Outcome(problem=DEAD_STRATEGIES[name])
    return UNTOUCHED


def old_accelerator(value: Any, context: Context) -> Outcome:
    """Names of strategies that were given as accelerator."""
    if not isinstance(value, str) or value not in OLD_ACCELERATORS:
        return UNTOUCHED
    return distributed_backend(value, context)


def old_plugins(value: Any, context: Context) -> Outcome:
    """Strategies, by name or as objects, among the plugins."""
    plugins = list(value) if isinstance(value, (list, tuple)) else [value]
    strategies = [plugin for plugin in plugins if isinstance(plugin, str) or _is_strategy(plugin)]
    if not strategies:
        return UNTOUCHED
    if len(strategies) > 1:
        return Outcome(problem=f"{len(strategies)} strategies among the plugins; write strategy= with one of them.")
    outcome = distributed_backend(strategies[0], context)
    if outcome.problem:
        return outcome
    rest = [plugin for plugin in plugins if plugin is not strategies[0]]
    return Outcome({**outcome.new, "plugins": rest or None}, outcome.write, outcome.note)


def _is_strategy(plugin: Any) -> bool:
    from bolide.strategies import Strategy

    return isinstance(plugin, Strategy)


# ------------------------------------------------------------------------------------------------------- precision


def amp_backend(value: Any, context: Context) -> Outcome:
    """PyTorch's mixed precision is the only one."""
    if value == "apex":
        return Outcome(problem='Apex is not supported. Write: precision="16-mixed".')
    return Outcome()


def old_precision(value: Any, context: Context) -> Outcome:
    """16 and "bf16" mean mixed precision. 32 and 64 say what they mean, and stay."""
    if value in (16, "16", "bf16") and not isinstance(value, bool):
        new = PRECISION_ALIASES[value]
        return Outcome({"precision": new}, f'precision="{new}"')
    return UNTOUCHED


def use_amp(value: Any, context: Context) -> Outcome:
    """Mixed precision as a switch."""
    if not value:
        return Outcome()
    return Outcome({"precision": "16-mixed"}, 'precision="16-mixed"')


# ------------------------------------------------------------------------------- checkpoints, stopping, what is shown


def resume_from_checkpoint(value: Any, context: Context) -> Outcome:
    """Remembered for the next fit."""
    if value is None:
        return Outcome()
    return Outcome({"resume_from_checkpoint": value}, f"trainer.fit(model, ckpt_path={str(value)!r})")


def checkpoint_callback(value: Any, context: Context) -> Outcome:
    """A switch, or the callback itself."""
    if value is None:
        return Outcome()
    if isinstance(value, bool):
        return Outcome({"enable_checkpointing": value}, f"enable_checkpointing={value}")
    callbacks = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return Outcome(write="callbacks=[ModelCheckpoint(...)]", callbacks=callbacks)


def early_stop_callback(value: Any, context: Context) -> Outcome:
    """A switch, or the callback itself."""
    if value is None or value is False:
        return Outcome()
    if value is True:
        from bolide.callbacks import EarlyStopping

        callback = EarlyStopping(monitor="val_loss", strict=False)
        return Outcome(write='callbacks=[EarlyStopping(monitor="val_loss")]', callbacks=(callback,))
    return Outcome(write="callbacks=[EarlyStopping(monitor=...)]", callbacks=(value,))


def weights_save_path(value: Any, context: Context) -> Outcome:
    """The folder of the checkpoints."""
    if value is None:
        return Outcome()
    line = f"callbacks=[ModelCheckpoint(dirpath={str(value)!r})]"
    if context.has_callback("ModelCheckpoint"):
        return Outcome(problem=f"give it to your ModelCheckpoint: ModelCheckpoint(..., dirpath={str(value)!r}).")
    from bolide.callbacks import ModelCheckpoint

    return Outcome(write=line, callbacks=(ModelCheckpoint(dirpath=value),))


def weights_summary(value: Any, context: Context) -> Outcome:
    """How deep the table of layers goes."""
    if value is None:
        return Outcome({"enable_model_summary": False}, "enable_model_summary=False")
    if value == "top":
        return Outcome({"enable_model_summary": True}, "enable_model_summary=True")
    if value != "full":
        return Outcome(problem='expected "top", "full" or None. Write: callbacks=[ModelSummary(max_depth=1)].')
    from bolide.callbacks import ModelSummary

    return Outcome(write="callbacks=[ModelSummary(max_depth=-1)]", callbacks=(ModelSummary(max_depth=-1),))


def progress_bar_refresh_rate(value: Any, context: Context) -> Outcome:
    """How often the bar is drawn; 0 turned it off."""
    if value is None:
        return Outcome()
    if value == 0:
        return Outcome({"enable_progress_bar": False}, "enable_progress_bar=False")
    return _bar(context, refresh_rate=value, process_position=context.old.get("process_position") or 0)


def process_position(value: Any, context: Context) -> Outcome:
    """The row of the bar."""
    if not value:
        return Outcome()
    rate = context.old.get("progress_bar_refresh_rate")
    if rate is not None:
        return Outcome(write=f"callbacks=[TQDMProgressBar(refresh_rate={rate!r}, process_position={value!r})]")
    return _bar(context, refresh_rate=1, process_position=value)


def _bar(context: Context, **settings: Any) -> Outcome:
    settings = {name: value for name, value in settings.items() if value or name == "refresh_rate"}
    line = f"callbacks=[TQDMProgressBar({', '.join(f'{name}={value!r}' for name, value in settings.items())})]"
    if context.has_callback("ProgressBar"):
        return Outcome(write=line, note="The progress bar among the callbacks is left as it is.")
    from bolide.callbacks import TQDMProgressBar

    return Outcome(write=line, callbacks=(TQDMProgressBar(**settings),))


# ---------------------------------------------------------------------------------------------------- data and steps


def reload_every_epoch(value: Any, context: Context) -> Outcome:
    """A switch that became a number of epochs."""
    count = 1 if value else 0
    return Outcome({"reload_dataloaders_every_n_epochs": count}, f"reload_dataloaders_every_n_epochs={count}")


def multiple_trainloader_mode(value: Any, context: Context) -> Outcome:
    """How several training loaders are read; the default of old is today's."""
    if value in (None, "max_size_cycle"):
        return Outcome(note="It is how a list of training loaders is read.")
    return Outcome(
        problem=f"Write: trainer.fit(model, CombinedLoader(loaders, mode={value!r})) "
        "(from bolide.utilities import CombinedLoader)."
    )


def prepare_data_per_node(value: Any, context: Context) -> Outcome:
    """An attribute of the module or datamodule today; True is its default."""
    if value:
        return Outcome(note="It is the default.")
    return Outcome(problem="Write: self.prepare_data_per_node = False in the module's or datamodule's __init__.")


def automatic_optimization(value: Any, context: Context) -> Outcome:
    """An attribute of the module today; True is its default."""
    if value is None or value:
        return Outcome(note="It is the default.")
    return Outcome(problem="Write: self.automatic_optimization = False in __init__ of the LightningModule.")


def track_grad_norm(value: Any, context: Context) -> Outcome:
    """The norm to log; -1 turned it off."""
    if value in (-1, "-1", None):
        return Outcome()
    from bolide.callbacks import LambdaCallback
    from bolide.utilities.grads import grad_norm

    def log_grad_norm(trainer: Any, pl_module: Any, optimizer: Any) -> None:
        pl_module.log_dict(grad_norm(pl_module, norm_type=value))

    return Outcome(
        write=f"self.log_dict(grad_norm(self, norm_type={value!r})) in on_before_optimizer_step",
        callbacks=(LambdaCallback(on_before_optimizer_step=log_grad_norm),),
    )


def terminate_on_nan(value: Any, context: Context) -> Outcome:
    """Stopping at a loss that is no number."""
    if not value:
        return Outcome()
    return Outcome({"detect_anomaly": True}, "detect_anomaly=True")


def old_accumulation(value: Any, context: Context) -> Outcome:
    """A factor for each epoch."""
    if not isinstance(value, Mapping):
        return UNTOUCHED
    from bolide.callbacks import GradientAccumulationScheduler

    line = f"callbacks=[GradientAccumulationScheduler(scheduling={dict(value)!r})]"
    return Outcome(write=line, callbacks=(GradientAccumulationScheduler(scheduling=dict(value)),))


def old_max_steps(value: Any, context: Context) -> Outcome:
    """None meant that steps are not counted."""
    return Outcome({"max_steps": -1}, "max_steps=-1") if value is None else UNTOUCHED
