"""What the user asked for: one frozen record, checked as a whole.

`RunConfig` holds the Trainer's arguments after old spellings were translated; the typed groups hold Bolide's own
settings. `problems(config)` runs every rule, one pure function each, and returns all that is wrong at once. The
Trainer replaces the record when an attribute is set; nobody edits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from bolide.core.errors import did_you_mean
from bolide.core.schedule import Every, parse_duration, parse_interval

PRECISIONS = ("64-true", "32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")
PRECISION_ALIASES = {
    64: "64-true", "64": "64-true", 32: "32-true", "32": "32-true", 16: "16-mixed", "16": "16-mixed",
    "bf16": "bf16-mixed", None: "32-true",
}  # fmt: skip
NOT_BUILT_PRECISIONS = ("transformer-engine", "transformer-engine-float16")


@dataclass(frozen=True)
class Compat:
    """Where Lightning's value or order differs from the right one, and which of the two a run gives.

    Every switch is off by default; `Trainer(compat="lightning")` turns all of them on.
    """

    accumulation_tail_full_divisor: bool = False
    """A short last accumulation window is divided by the full factor, not by its own length."""
    step_per_optimizer: bool = False
    """In manual optimization `global_step` counts every optimizer's step, not the batches that stepped."""
    last_is_last_saved: bool = False
    """`last.ckpt` is the last checkpoint that was among the best, not the newest state."""
    scheduler_frequency_in_batches: bool = False
    """A step scheduler's `frequency` counts batches of the epoch, not optimizer steps."""
    closure_logs_add_up: bool = False
    """What a closure logs counts once for each evaluation, not for the last one only."""
    saves_within_hooks: bool = False
    """Checkpoint callbacks save within the hooks of a batch, a validation or an epoch, not when all else is done."""
    resume_keeps_no_randomness: bool = False
    """Going on from a checkpoint leaves the random generators as they are, and begins loaders anew."""
    workers_seed_themselves: bool = False
    """`seed_everything(..., workers=True)` seeds worker processes, not each sample by its place."""
    max_time_is_total: bool = False
    """`max_time` counts all attempts of a run together, not this one alone."""
    deferred_save_is_dropped: bool = False
    """A save that waits for its metric is given up where the next due save comes first."""
    same_name_is_overwritten: bool = False
    """A checkpoint whose name holds no counter replaces the one of that name, kept or not."""
    loggers_save_each_time: bool = False
    """Loggers are asked to write out what they buffer after each metric, not every few seconds."""
    leaves_no_mark_of_the_end: bool = False
    """A fit that came to its end leaves no `finished.json` beside its checkpoints."""
    refit_continues_counters: bool = False
    """A second `fit` with another module goes on counting where the first one ended."""


COMPATS = {None: Compat(), "lightning": Compat(*(True for _ in fields(Compat)))}


@dataclass(frozen=True)
class Checkpointing:
    """How checkpoints are written: `Trainer(checkpointing=...)`.

    `format`: "file" is one file with whole tensors, whatever the strategy says; "auto" is as it says.
    """

    async_: bool = True
    on_save_error: Literal["raise", "warn"] = "raise"
    format: Literal["auto", "file"] = "auto"


@dataclass(frozen=True)
class Resilience:
    """What a run does against failure: `Trainer(resilience=...)`."""

    exact_resume: bool = False
    max_restarts: int = 0
    hang_timeout_s: float | None = None
    replay: bool = False
    elastic_batch: str | None = None


@dataclass(frozen=True)
class Performance:
    """What a run does for speed and memory: `Trainer(performance=...)`."""

    compile: bool = False
    fused_optimizer: bool = False
    cuda_graph: bool = False
    on_oom: Literal["raise"] | str = "raise"


@dataclass(frozen=True)
class Watch:
    """Who looks on: `Trainer(watch=...)`."""

    dashboard: bool = False
    log_format: Literal["text"] | str = "text"
    alerts: tuple[str, ...] = ()


G = TypeVar("G", Checkpointing, Resilience, Performance, Watch)
BUILT: frozenset[str] = frozenset(
    {"exact_resume", "replay", "async_", "on_save_error", "format", "max_restarts", "hang_timeout_s"}
)
"""Group settings whose mechanism exists; the others are refused where they differ from their default."""


def group(kind: type[G], given: G | Mapping[str, Any] | None, argument: str) -> tuple[G, list[str]]:
    """A typed group from its dataclass or a dictionary, and what is wrong with it."""
    default = kind()
    if given is None:
        return default, []
    if isinstance(given, kind):
        return given, _not_built(given, default, argument)
    if not isinstance(given, Mapping):
        return default, [f"{argument}={given!r} must be a {kind.__name__} or a dictionary"]
    names = {f.name.rstrip("_"): f.name for f in fields(kind)}
    wrong = [
        f"{argument}={{{key!r}: ...}} is not a setting of {kind.__name__} (there are: {', '.join(sorted(names))})."
        + did_you_mean(str(key), names)
        for key in given
        if key not in names
    ]
    if wrong:
        return default, wrong
    made = replace(default, **{names[key]: value for key, value in given.items()})
    return made, _not_built(made, default, argument)


def _not_built(made: Any, default: Any, argument: str) -> list[str]:
    return [
        f"{argument}={{{f.name.rstrip('_')!r}: {getattr(made, f.name)!r}}} is not built in this version of Bolide; "
        f"leave it at {getattr(default, f.name)!r}"
        for f in fields(made)
        if f.name not in BUILT and getattr(made, f.name) != getattr(default, f.name)
    ]


@dataclass(frozen=True)
class RunConfig:
    """The Trainer's arguments. None stands for "not given"; properties give the value that then holds."""

    accelerator: Any = "auto"
    strategy: Any = "auto"
    devices: Any = "auto"
    num_nodes: int = 1
    precision: Any = None
    fast_dev_run: int | bool = False
    max_epochs: int | None = None
    min_epochs: int | None = None
    max_steps: int = -1
    min_steps: int | None = None
    max_time: str | timedelta | Mapping[str, int] | None = None
    limit_train_batches: int | float | None = None
    limit_val_batches: int | float | None = None
    limit_test_batches: int | float | None = None
    limit_predict_batches: int | float | None = None
    overfit_batches: int | float = 0.0
    val_check_interval: int | float | str | timedelta | Mapping[str, int] | None = None
    check_val_every_n_epoch: int | None = 1
    num_sanity_val_steps: int | None = None
    log_every_n_steps: int | None = None
    enable_checkpointing: bool | None = None
    enable_progress_bar: bool | None = None
    enable_model_summary: bool | None = None
    accumulate_grad_batches: int = 1
    gradient_clip_val: float | None = None
    gradient_clip_algorithm: str | None = None
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    inference_mode: bool = True
    use_distributed_sampler: bool = True
    profiler: Any = None
    detect_anomaly: bool = False
    barebones: bool = False
    plugins: Any = None
    sync_batchnorm: bool = False
    reload_dataloaders_every_n_epochs: int = 0
    default_root_dir: str | Path | None = None
    enable_autolog_hparams: bool = True
    model_registry: str | None = None
    suggest_integrations: bool = True
    logger: Any = None
    callbacks: Any = None
    compat: str | None = None
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    resilience: Resilience = field(default_factory=Resilience)
    performance: Performance = field(default_factory=Performance)
    watch: Watch = field(default_factory=Watch)

    @property
    def interval(self) -> Every:
        """The parsed `val_check_interval`."""
        return parse_interval(1.0 if self.val_check_interval is None else self.val_check_interval)

    @property
    def switches(self) -> Compat:
        """The compat switches of this run."""
        return COMPATS[self.compat]


def filled(config: RunConfig) -> RunConfig:
    """`config` with the value that holds wherever None stood for "not given"; `fast_dev_run` overrules the rest."""
    none = {
        "limit_train_batches": 1.0, "limit_val_batches": 1.0, "limit_test_batches": 1.0, "limit_predict_batches": 1.0,
        "val_check_interval": 1.0, "num_sanity_val_steps": 2, "log_every_n_steps": 50, "enable_checkpointing": True,
        "enable_progress_bar": True, "enable_model_summary": True,
    }  # fmt: skip
    values: dict[str, Any] = {name: value for name, value in none.items() if getattr(config, name) is None}
    if config.barebones:
        values |= {
            "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "logger": False,
            "num_sanity_val_steps": 0, "log_every_n_steps": 0,
        }  # fmt: skip
    if config.num_sanity_val_steps == float("inf"):
        values["num_sanity_val_steps"] = -1
    run = config.fast_dev_run
    if run:
        count = int(run)
        values |= dict.fromkeys(LIMITS, count)
        values |= {
            "max_epochs": 1, "max_steps": count, "num_sanity_val_steps": 0, "val_check_interval": 1.0,
            "check_val_every_n_epoch": 1, "log_every_n_steps": 1,
        }  # fmt: skip
    elif config.max_epochs is None and (config.max_steps != -1 or config.max_time is not None):
        values["max_epochs"] = -1
    if config.min_epochs is None:
        values["min_epochs"] = 1 if config.min_steps else 0
    return replace(config, **values)


LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")
BAREBONES_OFF: dict[str, tuple[Any, ...]] = {
    "enable_checkpointing": (None, False), "logger": (None, False), "enable_progress_bar": (None, False),
    "enable_model_summary": (None, False), "num_sanity_val_steps": (None, 0), "fast_dev_run": (False, 0),
    "detect_anomaly": (False,), "profiler": (None,), "log_every_n_steps": (None, 0),
}  # fmt: skip
Rule = Callable[[RunConfig], Iterator[str]]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(c: RunConfig) -> Iterator[str]:
    at_least = {"min_epochs": 0, "min_steps": 0, "num_nodes": 1, "reload_dataloaders_every_n_epochs": 0}
    at_least |= {"max_epochs": -1, "max_steps": -1, "num_sanity_val_steps": -1, "log_every_n_steps": 0}
    at_least |= {"check_val_every_n_epoch": 1}
    optional = ("min_epochs", "min_steps", "max_epochs", "num_sanity_val_steps", "log_every_n_steps")
    for name, least in at_least.items():
        value = getattr(c, name)
        if value is None and name in (*optional, "check_val_every_n_epoch"):
            continue
        if name == "num_sanity_val_steps" and value == float("inf"):
            continue
        if not _is_count(value) or value < least:
            note = " (-1: without end)" if least == -1 else ""
            yield f"{name}={value!r} must be a whole number of at least {least}{note}"


def _limits(c: RunConfig) -> Iterator[str]:
    for name in (*LIMITS, "overfit_batches"):
        value = getattr(c, name)
        if value is None or (_is_count(value) and value >= 0) or (isinstance(value, float) and 0.0 <= value <= 1.0):
            continue
        yield f"{name}={value!r} must be a number of batches (an int from 0) or a share (a float from 0.0 to 1.0)"


def _dev_run(c: RunConfig) -> Iterator[str]:
    value = c.fast_dev_run
    if not isinstance(value, bool) and not (_is_count(value) and value >= 0):
        yield f"fast_dev_run={value!r} must be True, False, or the number of batches to run (0 or more)"


def _interval(c: RunConfig) -> Iterator[str]:
    try:
        every = c.interval
    except ValueError as error:
        yield f"val_check_interval={c.val_check_interval!r}: {error}"
        return
    if c.check_val_every_n_epoch is None and every.unit == "share" and c.val_check_interval not in (None, 1.0):
        yield (
            f"val_check_interval={c.val_check_interval!r} is a share of an epoch, and check_val_every_n_epoch=None "
            'counts across epochs: write a number of batches, or a quantity such as "500 steps" or "15 min"'
        )


def _accumulation(c: RunConfig) -> Iterator[str]:
    if not _is_count(c.accumulate_grad_batches) or c.accumulate_grad_batches < 1:
        yield f"accumulate_grad_batches={c.accumulate_grad_batches!r} must be a whole number of at least 1"


def _clipping(c: RunConfig) -> Iterator[str]:
    value, kind = c.gradient_clip_val, c.gradient_clip_algorithm
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        yield f"gradient_clip_val={value!r} must be a number"
    if kind is not None and kind not in ("norm", "value"):
        yield f"gradient_clip_algorithm={kind!r} must be 'norm' or 'value'"


def _precision(c: RunConfig) -> Iterator[str]:
    value = c.precision
    if value in NOT_BUILT_PRECISIONS:
        yield f"precision={value!r} is not built in this version of Bolide; write one of {', '.join(PRECISIONS)}"
    elif isinstance(value, (list, dict)) or (value not in PRECISION_ALIASES and value not in PRECISIONS):
        yield f"precision={value!r} must be one of {', '.join(PRECISIONS)}." + did_you_mean(str(value), PRECISIONS)


def _time(c: RunConfig) -> Iterator[str]:
    if c.max_time is not None:
        try:
            parse_duration(c.max_time)
        except (ValueError, AttributeError, TypeError) as error:
            yield f"max_time={c.max_time!r}: {error}"


def _barebones(c: RunConfig) -> Iterator[str]:
    if c.barebones:
        for name, allowed in BAREBONES_OFF.items():
            if getattr(c, name) not in allowed:
                yield (
                    f"barebones=True turns {name} off; {name}={getattr(c, name)!r} contradicts it: leave one of them "
                    "out"
                )


def _choices(c: RunConfig) -> Iterator[str]:
    if c.deterministic not in (None, True, False, "warn"):
        yield f"deterministic={c.deterministic!r} must be True, False or 'warn'"
    if c.compat not in COMPATS:
        yield f"compat={c.compat!r} must be None or 'lightning'"
    saves = c.checkpointing
    if saves.on_save_error not in ("raise", "warn"):
        yield f"checkpointing={{'on_save_error': {saves.on_save_error!r}}} must be 'raise' or 'warn'"
    if saves.format not in ("auto", "file"):
        yield (
            f"checkpointing={{'format': {saves.format!r}}} must be 'auto' or 'file'; for folders of shards write "
            "strategy=FSDPStrategy(state_dict_type='sharded')"
        )
    for argument, name, value in (
        ("checkpointing", "async", saves.async_), ("resilience", "exact_resume", c.resilience.exact_resume),
        ("resilience", "replay", c.resilience.replay),
    ):  # fmt: skip
        if not isinstance(value, bool):
            yield f"{argument}={{{name!r}: {value!r}}} must be True or False"


def _not_there(c: RunConfig) -> Iterator[str]:
    if c.profiler is not None:
        yield f"profiler={c.profiler!r}: profilers are not built in this version of Bolide; leave profiler out"
    if c.model_registry is not None:
        yield f"model_registry={c.model_registry!r} is not built in this version of Bolide; leave it out"


def _resilience(c: RunConfig) -> Iterator[str]:
    restarts, timeout_s = c.resilience.max_restarts, c.resilience.hang_timeout_s
    if not _is_count(restarts) or restarts < 0:
        yield f"resilience={{'max_restarts': {restarts!r}}} must be a whole number of at least 0"
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if timeout_s is not None and not (is_number and timeout_s > 0):
        yield f"resilience={{'hang_timeout_s': {timeout_s!r}}} must be a number of seconds above 0"


RULES: tuple[Rule, ...] = (
    _counts, _limits, _dev_run, _interval, _accumulation, _clipping, _precision, _time, _barebones, _choices,
    _not_there, _resilience,
)  # fmt: skip


def problems(config: RunConfig) -> list[str]:
    """Everything that is wrong with `config`, one sentence each, naming the argument as the user typed it."""
    return [text for rule in RULES for text in rule(config)]
