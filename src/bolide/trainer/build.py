"""From the Trainer's arguments to a checked config and the objects it asks for.

All that is wrong is said at once, before anything is built. Who calls: `Trainer.__init__`, once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch

from bolide.compat.lightning_args import translate
from bolide.core import env
from bolide.core.config import (
    Checkpointing,
    Performance,
    Resilience,
    RunConfig,
    Watch,
    filled,
    group,
    problems,
)
from bolide.core.errors import ConfigError, MisconfigurationException, did_you_mean
from bolide.core.messages import warn, warn_once
from bolide.launch.detect import detect
from bolide.launch.environments import ClusterEnvironment
from bolide.launch.group import die_with_agent
from bolide.launch.slurm import SLURMEnvironment
from bolide.precision import Precision
from bolide.strategies import resolve_strategy
from bolide.strategies.strategy import SingleDeviceStrategy, Strategy
from bolide.world import World, resolve_world

if TYPE_CHECKING:
    from bolide.callbacks.callback import Callback
    from bolide.loggers.logger import Logger

GROUPS = {
    "checkpointing": Checkpointing,
    "resilience": Resilience,
    "performance": Performance,
    "watch": Watch,
}
__all__ = ["build", "problems", "replace"]
DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(RunConfig) if f.name not in GROUPS}


@dataclass
class Parts:
    """What a Trainer is made of, checked."""

    config: RunConfig
    world: World
    strategy: Strategy
    precision: Precision
    checkpoint_io: Any
    queue: Any
    added_callbacks: list[Any]
    resume_from: str | None


def build(arguments: dict[str, Any], old: Mapping[str, Any]) -> Parts:
    """Checks the arguments, old spellings included, and makes what they ask for.

    Raises:
        ConfigError: lists everything that is wrong.
    """
    arguments = with_environment(arguments)
    given = {name: value for name, value in arguments.items() if _given(name, value)}
    new, wrong, warnings, added = translate(dict(old), given)
    resume_from = new.pop("resume_from_checkpoint", None)
    arguments |= new
    for name, kind in GROUPS.items():
        arguments[name], more = group(kind, arguments[name], name)
        wrong = [*wrong, *more]
    config = RunConfig(**arguments)
    plugins, plugin_wrong = sort_plugins(config)
    world, strategy, place_wrong = placed(config, plugins.get("environment"))
    for text in warnings:
        warn(text, FutureWarning, stacklevel=3)
    wrong = [*wrong, *problems(config), *place_wrong, *plugin_wrong]
    if wrong:
        raise ConfigError(list(dict.fromkeys(wrong)))
    die_with_agent()
    strategy.open(world.device)
    queue = plugins.get("queue") or (SLURMEnvironment() if SLURMEnvironment.detect() else None)
    precision = plugins.get("precision") or strategy.make_precision(config.precision)
    return Parts(filled(config), world, strategy, precision, plugins.get("io"), queue, added, resume_from)


def placed(config: RunConfig, environment: Any = None) -> tuple[World, Strategy, list[str]]:
    """Where this process stands among all and the strategy that goes with it, and what is wrong with the request."""
    environment = environment or getattr(config.strategy, "environment", None) or detect()
    launcher = environment if environment is not None and environment.creates_processes_externally else None
    alone = config.strategy == "single_device" or type(config.strategy) is SingleDeviceStrategy
    world, wrong = resolve_world(config.accelerator, config.devices, config.num_nodes, launcher, alone)
    strategy, more = resolve_strategy(config.strategy, world.world_size > 1)
    if not strategy.distributed:
        asked = resolve_world(config.accelerator, config.devices, config.num_nodes, None)[0].world_size
        if asked > 1 and config.strategy != "auto":
            name = config.strategy if isinstance(config.strategy, str) else type(strategy).__name__
            more = more or [
                f"strategy={name!r} runs one process, and devices={config.devices!r} with num_nodes={config.num_nodes} "
                f"asks for {asked}: write strategy='ddp', or devices=1"
            ]
        if config.sync_batchnorm:
            warn_once("sync_batchnorm=True has no effect with one process.")
    else:
        strategy.sync_batchnorm = config.sync_batchnorm  # type: ignore[attr-defined]
    strategy.world, strategy.environment = world, launcher or environment
    return world, strategy, wrong + more


def _given(name: str, value: Any) -> bool:
    if name in GROUPS:
        return value is not None
    default = DEFAULTS[name]
    return value is not default and not (type(value) is type(default) and value == default)


def with_environment(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments that were not given, from `PL_TRAINER_<NAME>` in the environment; as Python literals, else text."""
    found = env.trainer_arguments()
    unknown = [name for name in found if name not in arguments]
    for name in unknown:
        warn(
            f"The environment variable {env.TRAINER_PREFIX}{name.upper()} names no Trainer argument."
            + did_you_mean(name, arguments)
        )
    read = dict(arguments)
    for name, text in found.items():
        if name in arguments and not _given(name, arguments[name]):
            try:
                read[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                read[name] = text
    return read


def sort_plugins(config: RunConfig) -> tuple[dict[str, Any], list[str]]:
    """The plugins by what they replace, and what is wrong with them: one each at the most."""
    from bolide.core.protocols import CheckpointFormat

    plugins = config.plugins
    items = [] if plugins is None else plugins if isinstance(plugins, (list, tuple)) else [plugins]
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for plugin in items:
        kind = "precision" if isinstance(plugin, Precision) else "io" if isinstance(plugin, CheckpointFormat) else None
        kind = "environment" if isinstance(plugin, ClusterEnvironment) else kind
        kind = "queue" if callable(getattr(plugin, "requeue", None)) else kind
        if isinstance(plugin, ClusterEnvironment) and kind == "queue" and plugin.creates_processes_externally:
            found["environment"] = plugin
        if kind is None:
            wrong.append(
                f"plugins={plugin!r} is not built in this version of Bolide: a Precision, a CheckpointIO or a cluster "
                "environment can be given"
            )
        elif kind in found:
            wrong.append(f"plugins holds two of {type(plugin).__name__}'s kind; leave one out")
        else:
            found[kind] = plugin
    if "precision" in found and config.precision is not None:
        wrong.append(
            f"precision={config.precision!r} and a precision plugin contradict each other; leave one of them out"
        )
    return found, wrong


def set_process_flags(config: RunConfig) -> None:
    """Determinism and cuDNN's benchmark mode: settings of the process, which stay after the trainer."""
    deterministic = config.deterministic
    if deterministic is not None:
        torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
        if deterministic:
            env.set("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    benchmark = config.benchmark
    if benchmark is None and deterministic:
        benchmark = False
    if benchmark is not None:
        torch.backends.cudnn.benchmark = benchmark


def make_loggers(config: RunConfig, root_dir: str) -> list[Logger]:
    """The loggers that `logger=` means: TensorBoard where it is installed, else CSV, by default."""
    asked = config.logger
    if asked is False:
        return []
    from bolide.loggers.logger import DummyLogger
    from bolide.loggers.logger import Logger as Base

    if config.fast_dev_run:
        return [DummyLogger()]
    if asked is None or asked is True:
        import importlib.util

        from bolide.loggers import CSVLogger, TensorBoardLogger
        from bolide.loggers.tensorboard import slurm_version

        if importlib.util.find_spec("tensorboard") is not None:
            return [TensorBoardLogger(root_dir, version=slurm_version())]
        return [CSVLogger(root_dir)]
    items = list(asked) if isinstance(asked, Iterable) and not isinstance(asked, Base) else [asked]
    for item in items:
        if not callable(getattr(item, "log_metrics", None)):
            raise ConfigError(f"logger={item!r} must be True, False, a Logger or a list of Loggers")
    return items


def make_callbacks(config: RunConfig, added: list[Any]) -> list[Callback]:
    """All callbacks: the user's, then the timer, the bar and the summary, checkpoints last.

    Raises:
        ConfigError: no callback, or one that a setting turns off, or two bars.
    """
    from bolide.callbacks import ModelCheckpoint, ModelSummary, ProgressBar, RichModelSummary, StepRecord, Timer
    from bolide.callbacks.callback import Callback as Base
    from bolide.callbacks.checkpoint import Checkpoint
    from bolide.callbacks.progress import default_progress_bar

    asked = config.callbacks
    items: list[Any] = [] if asked is None else list(asked) if isinstance(asked, (list, tuple, set)) else [asked]
    items += [item for item in added if item not in items]
    wrong = [
        f"callbacks holds {item!r}, which is "
        f"{'a class: write ' + item.__name__ + '(...)' if isinstance(item, type) else 'no Callback'}"
        for item in items
        if not isinstance(item, Base)
    ]
    bars = [item for item in items if isinstance(item, ProgressBar)]
    if len(bars) > 1:
        wrong.append(f"callbacks holds {len(bars)} progress bars; leave all but one out")
    kinds = {
        "enable_progress_bar": ProgressBar,
        "enable_model_summary": ModelSummary,
        "enable_checkpointing": Checkpoint,
    }
    for name, kind in kinds.items():
        present = [type(item).__name__ for item in items if isinstance(item, kind)]
        if present and not getattr(config, name) and not (config.barebones and name == "enable_model_summary"):
            wrong.append(f"{name}=False contradicts {present[0]} in callbacks; leave one of them out")
    if wrong:
        raise ConfigError(wrong)
    if config.max_time is not None:
        items.append(Timer(config.max_time))
    if config.enable_progress_bar and not bars:
        items.append(default_progress_bar())
    if config.enable_model_summary and not any(isinstance(item, ModelSummary) for item in items):
        from bolide.callbacks.progress import RichProgressBar

        rich = any(isinstance(item, RichProgressBar) for item in items)
        items.append(RichModelSummary() if rich else ModelSummary())
    if config.resilience.replay and not any(isinstance(item, StepRecord) for item in items):
        items.append(StepRecord())
    if config.enable_checkpointing and not any(isinstance(item, Checkpoint) for item in items):
        items.append(ModelCheckpoint())
    return checkpoints_last(items)


def checkpoints_last(callbacks: list[Any]) -> list[Any]:
    """The callbacks with all that save checkpoints at the end, so that they save what the others have done."""
    from bolide.callbacks.checkpoint import Checkpoint

    savers = [item for item in callbacks if isinstance(item, Checkpoint)]
    return [item for item in callbacks if not isinstance(item, Checkpoint)] + savers


def merged_callbacks(own: list[Any], more: list[Any]) -> list[Any]:
    """The trainer's callbacks with those of `configure_callbacks`, which replace what is of their type or a base.

    Raises:
        MisconfigurationException: something that is no callback.
    """
    from bolide.callbacks.callback import Callback as Base

    for item in more:
        if not isinstance(item, Base):
            raise MisconfigurationException(f"configure_callbacks returned {item!r}, which is no Callback")
    kinds = {type(item) for item in more}
    kept = [item for item in own if not any(issubclass(kind, type(item)) and type(item) is not Base for kind in kinds)]
    return checkpoints_last(kept + more)
