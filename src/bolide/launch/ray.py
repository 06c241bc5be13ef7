"""Training on a Ray cluster: Ray Train places the workers, watches them, and starts them again where one is lost.

`run` takes a function, `fit` a module, `run_script` a script, which is `__main__` in each worker. A Trainer within a
worker finds its place by itself. Bolide's checkpoints in the run's folder are what an attempt goes on from; Ray keeps
none. Functions and modules go to the workers by Ray's own serialisation: a Ray cluster trusts its members. Who calls:
users, and `bolide launch --ray`.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.core.messages import info, warn
from bolide.launch.environments import restart_count
from bolide.launch.group import close_group, opened
from bolide.launch.processes import RankError
from bolide.launch.ray_cluster import connected, enter, folder_for_workers

STORAGE = "ray_results"
SWITCHES = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
"""Ray Train leaves a worker's current folder as it is, and what it prints."""

ALONE = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""On a Ray of this machine's own no machine is taken away."""


@dataclass(frozen=True)
class Trained:
    """What a fit on Ray ends with.

    Attributes:
        weights: the module's state_dict, whole, on the CPU.
        metrics: trainer.callback_metrics at the end.
        checkpoint: the path of the best checkpoint; None where none was saved.
        log_dir: the folder of the logger.
        global_step: how many optimizer steps there were in all.
        restarts: how often Ray has started the workers again.
    """

    weights: dict[str, torch.Tensor]
    metrics: dict[str, float]
    checkpoint: str | None
    log_dir: str | None
    global_step: int
    restarts: int


def run(
    train: Callable[[], Any],
    *,
    num_workers: int = 1,
    use_gpu: bool | None = None,
    cpus_per_worker: float = 1,
    resources_per_worker: Mapping[str, float] | None = None,
    max_failures: int = 0,
    address: str | None = None,
    storage_path: str | os.PathLike[str] | None = None,
    name: str | None = None,
    runtime_env: dict[str, Any] | None = None,
) -> Any:
    """Calls `train()` in each of `num_workers` processes of a Ray cluster, as the ranks of one training.

    A Trainer that `train` makes finds its rank (leave `devices` out). Without `default_root_dir` it writes below
    `storage_path/name`. After the loss of a worker all are started again, and the Trainer's fit goes on from the newest
    checkpoint there.

    Args:
        train: a function without arguments. What it refers to goes along by Ray's serialisation.
        num_workers: how many processes.
        use_gpu: one GPU for each; None: where the cluster has any.
        cpus_per_worker: CPU slots of Ray's for each: more where loaders have workers.
        resources_per_worker: further resources of Ray's, such as {"memory": 8e9}.
        max_failures: how often the group is started again, in all; -1: without limit.
        address: of the cluster, "host:port" or "auto"; None: RAY_ADDRESS, else Ray is started on this machine.
        storage_path: a folder or URL that all machines see; default "ray_results" in the current folder.
        name: of the run below it; a new one by default. The same again goes on where that run has ended, if the fit
            has ckpt_path="auto".
        runtime_env: what Ray prepares on each machine: {"working_dir": ".", "pip": [...]}.

    Returns:
        What `train` returned on rank 0; tensors in it should be on the CPU.

    Raises:
        ConfigError: lists everything that is wrong with the arguments.
        MissingPackageError: Ray is not installed.
        RankError: a worker failed, and `max_failures` is used up; with its traceback.

    Example::

        def train():
            trainer = Trainer(max_epochs=3)
            trainer.fit(Net(), loader, ckpt_path="auto")
            return trainer.callback_metrics["loss"].item()

        loss = bolide.launch.ray.run(train, num_workers=4, max_failures=3)
    """
    wrong = []
    if not callable(train):
        wrong.append(f"train={train!r} must be a function without arguments")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        wrong.append(f"num_workers={num_workers!r} must be a whole number of at least 1")
        num_workers = 1
    if isinstance(max_failures, bool) or not isinstance(max_failures, int) or max_failures < -1:
        wrong.append(f"max_failures={max_failures!r} must be a whole number: 0 starts nothing again, -1 has no limit")
    if not isinstance(cpus_per_worker, (int, float)) or cpus_per_worker < 0:
        wrong.append(f"cpus_per_worker={cpus_per_worker!r} must be a number of at least 0")
        cpus_per_worker = 0
    if name is not None and (not name or name in (".", "..") or any(sign in name for sign in "/\\")):
        wrong.append(f"name={name!r} must be the name of a folder below storage_path")
    if wrong:
        raise ConfigError(wrong)
    name = name or f"bolide-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:6]}"
    storage = _storage(storage_path)
    asked = {"CPU": cpus_per_worker, **(resources_per_worker or {})}
    with connected(
        "Training on Ray", cpus=num_workers * asked["CPU"], address=address, runtime_env=runtime_env
    ) as (ray, alone), env.changed(SWITCHES | (ALONE if alone else {})):  # fmt: skip
        from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError

        from bolide.launch.ray_backend import AloneTrainer, PlaceOnly, Told, TorchTrainer, first_failed, told

        if use_gpu is None:
            use_gpu = ray.cluster_resources().get("GPU", 0) > 0
        if storage_path is None and sum(bool(node["Alive"]) for node in ray.nodes()) > 1:
            warn(f"storage_path={storage!r} must be a folder that all machines of the cluster see; give it one")
        trainer = (AloneTrainer if alone else TorchTrainer)(
            _worker(train, folder_for_workers(ray)),
            torch_config=PlaceOnly(variables={"PL_TRAINER_DEFAULT_ROOT_DIR": f"{storage}/{name}"}),
            scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu, resources_per_worker=asked),
            run_config=RunConfig(
                name=name,
                storage_path=storage,
                failure_config=FailureConfig(max_failures=max_failures),
                callbacks=[Told()],
                logging_config=LoggingConfig("ERROR"),  # what Ray tells of failures, Told tells
            ),
        )
        info(f"The run's folder is {storage}/{name}.")
        try:
            return trainer.fit().return_value
        except WorkerGroupError as error:
            rank = first_failed(error.worker_failures)
            raise RankError(rank, told(error.worker_failures[rank])) from error


def fit(
    module: Any,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    datamodule: Any = None,
    *,
    trainer: Mapping[str, Any] | None = None,
    ckpt_path: str | None = None,
    num_workers: int = 1,
    **cluster: Any,
) -> Trained:
    """`trainer.fit(module, ...)` on a Ray cluster.

    Args:
        module: a LightningModule, which has the trained weights afterwards; or a function that makes one, called in
            each worker.
        train_dataloaders: as for Trainer.fit; a function that makes them is called in each worker.
        val_dataloaders: as above.
        datamodule: in the place of loaders; as above.
        trainer: arguments of Trainer, such as {"max_epochs": 5}. resilience={"max_restarts": n} is `max_failures`.
        ckpt_path: as for Trainer.fit. A restart goes on from the newest checkpoint, whatever is given here.
        num_workers: how many processes.
        cluster: the other arguments of `run`.

    Raises:
        ConfigError: lists everything that is wrong with the arguments.
        MissingPackageError: Ray is not installed.
        RankError: a worker failed, and `max_failures` is used up; with its traceback.

    Example::

        done = bolide.launch.ray.fit(Net(), loader, trainer={"max_epochs": 3}, num_workers=2, max_failures=3)
        print(done.metrics, done.checkpoint)
    """
    options = dict(trainer or {})
    wrong = [f"trainer={{{key!r}: ...}}: num_workers={num_workers} says how many processes there are; leave it out"
             for key in ("devices", "num_nodes") if key in options]  # fmt: skip
    if wrong:
        raise ConfigError(wrong)
    resilience = dict(options.get("resilience") or {}) if isinstance(options.get("resilience"), Mapping) else None
    if resilience and "max_restarts" in resilience:
        cluster.setdefault("max_failures", resilience.pop("max_restarts"))
        options["resilience"] = resilience

    def train() -> Trained:
        return _fit_here(module, (train_dataloaders, val_dataloaders, datamodule), options, ckpt_path)

    done: Trained = run(train, num_workers=num_workers, **cluster)
    if isinstance(module, torch.nn.Module):
        module.load_state_dict(done.weights)
    return done


def run_script(script: str, arguments: Sequence[str], *, is_module: bool = False, **cluster: Any) -> None:
    """Runs a script in each worker, as `python script arguments` would.

    Args:
        script: its path, or a module's name.
        arguments: its own.
        is_module: whether it is a module's name, as in `python -m`.
        cluster: the arguments of `run`.

    Raises:
        RankError: it failed in a worker, and `max_failures` is used up.
    """
    given, full, words = script, os.path.abspath(script), list(arguments)

    def train() -> None:
        _script_here(given, full, words, is_module)

    run(train, **cluster)


# ---------------------------------------------------------------------- within a worker


def _worker(train: Callable[[], Any], folder: str | None) -> Callable[[], Any]:
    """What Ray calls in each worker: in the folder of the program that asked, where there is one."""

    def worker() -> Any:
        enter(folder)
        try:
            answer = train()
        except BaseException:
            opened.failed = True  # this process waits for nobody any more
            raise
        finally:
            close_group()
        return answer if env.rank() == 0 else None

    return worker


def _fit_here(module: Any, data: tuple[Any, ...], options: dict[str, Any], ckpt_path: str | None) -> Trained:
    from torch.utils._pytree import tree_map

    from bolide.data.loaders import made
    from bolide.trainer.trainer import Trainer

    built: Any = module if isinstance(module, torch.nn.Module) else module()
    trainer = Trainer(**options)
    loaders, val_loaders, datamodule = map(made, data)
    # a group that was started again goes on from what it has saved, which is further than what was given at first
    trainer.fit(built, loaders, val_loaders, datamodule, ckpt_path="auto" if restart_count() else ckpt_path)
    saver = trainer.checkpoint_callback
    return Trained(
        tree_map(lambda x: x.detach().cpu() if isinstance(x, torch.Tensor) else x, trainer.strategy.state()),
        {name: float(value) for name, value in trainer.callback_metrics.items()},
        getattr(saver, "best_model_path", "") or None,
        None if trainer.log_dir is None else os.fspath(trainer.log_dir),
        trainer.global_step,
        restart_count(),
    )


def _script_here(given: str, full: str, arguments: list[str], is_module: bool) -> None:
    """Runs the script as `__main__`, with its own sys.argv and its folder at the head of sys.path."""
    path = next((path for path in (os.path.abspath(given), full) if os.path.isfile(path)), None)
    if path is None and not is_module:
        raise ConfigError(
            f"There is no script {full!r} on this machine of the cluster. Put it on a file system that all machines "
            "see, or write --working-dir . so that Ray sends the folder along"
        )
    argv, paths = sys.argv, list(sys.path)
    sys.argv = [given if is_module else str(path), *arguments]
    sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(str(path)))
    try:
        if is_module:
            runpy.run_module(given, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise RuntimeError(f"{given} ended with exit code {stop.code}") from stop
    finally:
        sys.argv, sys.path[:] = argv, paths


# ---------------------------------------------------------------------- in the program that asks


def _storage(path: str | os.PathLike[str] | None) -> str:
    text = os.fspath(path) if path is not None else STORAGE
    return text.rstrip("/") if "://" in text else os.path.abspath(os.path.expanduser(text))
