"""What the Trainer does where several processes are asked for: starts them, and agrees with them on where a run is.

In the process that starts them, a function of the trainer ends by SystemExit where the script was run again, else with
what came back from the first rank. Who calls: the Trainer's functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from bolide import collectives
from bolide.checkpoint.state import keyed
from bolide.core import env
from bolide.core.hooks import overrides
from bolide.core.messages import warn_once
from bolide.core.states import TrainerStatus
from bolide.launch.environments import LightningEnvironment, RayEnvironment, started_before
from bolide.launch.script import how_to_start, script_command
from bolide.strategies.strategy import matching_keys
from bolide.trainer.checks import checked_module, split_data
from bolide.trainer.paths import go_on_in, resolve_ckpt_path

if TYPE_CHECKING:
    from bolide.trainer.trainer import Trainer


def estimate_instead(module: Any, loaders: Any, datamodule: Any) -> None:
    """Where `bolide estimate` runs the script: prints what the fit would take, and ends the program.

    Raises:
        SystemExit: always, once the table is printed.
    """
    from bolide.strategies.estimate import estimate

    counts, _, memory = (env.get("BOLIDE_ESTIMATE") or "").partition(";")
    batch = None
    if loaders is None:
        for owner in (datamodule, module):
            if owner is not None and overrides(owner, "train_dataloader"):
                if datamodule is not None:
                    datamodule.setup("fit")
                loaders = owner.train_dataloader()
                break
    if loaders is not None:
        batch = next(iter(loaders), None)
    print(estimate(module, batch, [int(part) for part in counts.split(",")], memory or None), flush=True)
    raise SystemExit(0)


def starts_ranks(trainer: Trainer) -> bool:
    """Whether a function of the trainer is run in other processes: several are asked for, or one that is watched."""
    resilience, world = trainer.config.resilience, trainer._world
    watched = bool(resilience.max_restarts) or resilience.hang_timeout_s is not None
    if watched and world.launched and env.get("BOLIDE_AGENT_PID") is None:
        warn_once(
            "resilience={'max_restarts': ..., 'hang_timeout_s': ...} is for processes that Bolide starts; these were "
            "started by a launcher, which has settings of its own (torchrun --max-restarts, Ray's max_failures)"
        )
    if world.starts_ranks:
        return True
    return watched and not has_launcher() and script_command() is not None


def has_launcher() -> bool:
    """Whether an agent or Ray started this process, which may be the only one."""
    return env.get("TORCHELASTIC_RUN_ID") is not None or RayEnvironment.detect()


NEEDED = {"fit": ("training_step",), "validate": ("validation_step",), "test": ("test_step",)}


def run_as_ranks(trainer: Trainer, fn: str, **arguments: Any) -> Any:
    """Runs the trainer's function `fn` in as many processes as were asked for.

    Returns:
        What it returned on the first rank, with its weights, metrics and paths taken over.

    Raises:
        SystemExit: the script was run again as ranks, and they have ended, with this exit code.
        RankError: a rank failed that was spawned or forked.
    """
    model = arguments["model"] if arguments["model"] is not None else trainer.lightning_module
    # what is wrong with the module and the loaders is said here, once, before a process is started
    module = checked_module(trainer, model, fn, NEEDED.get(fn, ()))
    loaders = arguments.get("train_dataloaders") if fn == "fit" else arguments.get("dataloaders")
    split_data(fn, loaders, arguments["datamodule"], "train_dataloaders" if fn == "fit" else "dataloaders")
    world, strategy, resilience = trainer._world, trainer.strategy, trainer.config.resilience
    start, command = how_to_start(strategy.start_method, strategy.strategy_name, world.world_size)
    if start == "script":
        from bolide.launch.agent import Launch, run_ranks

        if str(arguments["ckpt_path"]) == "auto" and env.get("BOLIDE_RUN_DIR") is None:
            resolve_ckpt_path(trainer, fn, "auto", model_given=True)  # the loggers take the folder that it goes on in
        if env.get("BOLIDE_RUN_DIR") is None and trainer.run_dir is not None:
            env.set("BOLIDE_RUN_DIR", str(trainer.run_dir))
        launch = Launch(
            command,
            world.local_world_size,
            max_restarts=resilience.max_restarts,
            hang_timeout_s=resilience.hang_timeout_s,
        )
        raise SystemExit(run_ranks(launch))
    from bolide.launch.processes import run_in_processes

    if resilience.max_restarts or resilience.hang_timeout_s is not None:
        warn_once(
            "resilience={'max_restarts': ..., 'hang_timeout_s': ...} has no effect where processes are spawned or "
            "forked from a running program: put the training into a script of its own"
        )
    arguments["model"] = module
    answer = run_in_processes(_as_rank, (trainer, fn, arguments), world.local_world_size, fork=start == "fork")
    return _take_over(trainer, fn, module, arguments["datamodule"], answer)


def _as_rank(trainer: Trainer, fn: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """In a spawned or forked process: this rank's part of the work; what the first one hands back."""
    from bolide.trainer.build import placed

    strategy = trainer.strategy
    trainer._world = placed(trainer.config, LightningEnvironment())[0]
    strategy.world, strategy.environment = trainer._world, LightningEnvironment()
    strategy.open(trainer._world.device)
    trainer._log = trainer._new_log()
    # what was handed to a spawned process lies in memory that all of them share: each trains weights of its own
    with torch.no_grad():
        for tensor in (*arguments["model"].parameters(), *arguments["model"].buffers()):
            tensor.data = tensor.data.clone()
    result = getattr(trainer, fn)(**arguments)
    spread = strategy.sharded or not strategy.gradients_on_parameters
    weights = strategy.state() if spread else None  # all ranks have a part in it
    if not trainer.is_global_zero:
        return None
    module = trainer.lightning_module
    assert module is not None
    return {
        "result": _on_cpu(result),
        "weights": weights if weights is not None else _on_cpu(module.state_dict()),
        "progress": trainer.progress.state_dict(),
        "metrics": {
            name: _on_cpu(dict(getattr(trainer._log, name)))
            for name in ("callback_metrics", "logged_metrics", "progress_bar_metrics")
        },
        "callbacks": {
            key: (_on_cpu(callback.state_dict()), getattr(callback, "dirpath", None))
            for key, callback in keyed(trainer.callbacks)
        },
        "loggers": [getattr(logger, "_version", None) for logger in trainer.loggers],
        "stopped": (trainer.should_stop, trainer.stop_reason),
    }


def _on_cpu(item: Any) -> Any:
    return tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, item)


def _take_over(trainer: Trainer, fn: str, module: Any, datamodule: Any, answer: dict[str, Any]) -> Any:
    """What the first rank ended with, in this process: as if it had run here."""
    # copies: what came through shared memory is not kept
    answer = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, answer)
    _, datamodule = split_data(fn, None, datamodule, "dataloaders")
    trainer._new_run(fn, module, datamodule)
    module.trainer = trainer
    module.load_state_dict(matching_keys(answer["weights"], module))
    trainer.progress.load_state_dict(answer["progress"])
    for name, metrics in answer["metrics"].items():
        getattr(trainer._log, name).update(metrics)
    for key, callback in keyed(trainer.callbacks):
        state, dirpath = answer["callbacks"].get(key, ({}, None))
        if dirpath is not None:
            callback.dirpath = dirpath
        if state:
            callback.load_state_dict(state)
    for logger, version in zip(trainer.loggers, answer["loggers"], strict=True):
        if version is not None and hasattr(logger, "_version"):
            logger._version = version
    trainer.should_stop, trainer.stop_reason = answer["stopped"]
    trainer.state.status = TrainerStatus.FINISHED
    return answer["result"]


# ---------------------------------------------------------------------- within a rank


def is_restart() -> bool:
    """Whether the group goes on with what another began, as any of its agents knows. All ranks call it.

    The agent of a machine that came later has started nothing before, and its rank may be the first.
    """
    return collectives.any_rank("the beginning of a fit", started_before())


def agreed_path(trainer: Trainer, fn: str, ckpt_path: Any, model_given: bool) -> str | None:
    """What `ckpt_path` means, as the first rank finds it: all go on from one file."""
    return collectives.on_rank_zero(lambda: resolve_ckpt_path(trainer, fn, ckpt_path, model_given))


def take_launch_folder(trainer: Trainer) -> None:
    """One folder for all restarts, where the launch has fixed one."""
    launched = env.get("BOLIDE_RUN_DIR")
    if launched and (trainer._world.launched or has_launcher()):
        go_on_in(trainer, launched)


def share_run_folder(trainer: Trainer) -> None:
    """One folder for all ranks: the one that the first rank's loggers have, or take now."""
    if collectives.size() == 1:
        return
    owners = [logger for logger in trainer.loggers if hasattr(logger, "_version")]
    versions = collectives.broadcast([logger.version for logger in owners] if trainer.is_global_zero else [])
    for logger, version in zip(owners, versions, strict=False):
        logger._version = version
