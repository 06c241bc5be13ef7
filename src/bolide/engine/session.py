"""What surrounds the loops: opening a run, its setup hooks, restoring, closing, and what an exception leaves behind.

One function each for fit, steps, evaluation and prediction, in the order of Lightning's documented hooks. Who calls:
the Trainer.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from bolide.checkpoint import io, store
from bolide.checkpoint.digest import About
from bolide.checkpoint.parts import share_of_this_rank
from bolide.checkpoint.read import open_checkpoint
from bolide.checkpoint.state import collect, keyed, restore_module, restore_training
from bolide.core.errors import UserCodeError
from bolide.core.hooks import Hooks, overrides, resolve
from bolide.core.messages import PossibleUserWarning, info, warn, warn_once
from bolide.core.progress import Progress
from bolide.core.states import RunningStage, TrainerStatus
from bolide.engine import elastic, folders, rank_log, ranks
from bolide.engine import fit as fit_loop
from bolide.engine import plan as plans
from bolide.engine.evaluate import evaluate
from bolide.engine.optimizers import LightningOptimizer, LRSchedulerConfig, check_schedulers, parse_optimizers
from bolide.engine.predict import predict
from bolide.engine.resume import restore_run, saved_run
from bolide.engine.signals import error_of, finish_saves_quietly
from bolide.secrets import hide

if TYPE_CHECKING:
    from bolide.engine.run import Run

STAGES = {
    "fit": RunningStage.TRAINING,
    "validate": RunningStage.VALIDATING,
    "test": RunningStage.TESTING,
    "predict": RunningStage.PREDICTING,
}


def stepwise(run: Run, ckpt_path: str | None) -> Generator[Progress, None, None]:
    """A fit, batch by batch. Closing it before its end runs the end hooks, and the loggers hear "interrupted"."""
    try:
        open_fit(run, ckpt_path)
        try:
            yield from fit_loop.fit(run)
        except GeneratorExit:
            for hook in run.plan.hooks.on_train_end:
                hook()
            close(run, run.plan.hooks, "fit", "interrupted")
            raise
        close(run, run.plan.hooks, "fit", "success")
    except GeneratorExit:
        raise
    except BaseException as error:
        end = error_of(run, error)
        fail(run, end)
        if end is error:
            raise
        raise end from error


def run_evaluation(run: Run, name: str, limit: float | None, ckpt_path: str | None) -> list[dict[str, float]]:
    """A whole `validate` or `test`: `name` is that."""
    kind = "validation" if name == "validate" else "test"
    loader_hook = "val_dataloader" if name == "validate" else "test_dataloader"
    try:
        hooks = open_other(run, name, ckpt_path)
        run.results = evaluate(
            run, hooks, kind, run.evals, lambda: fit_loop.load_eval(run, run.evals, name, loader_hook, limit),
            standalone=True,
        )  # fmt: skip
        close(run, hooks, name, "success")
    except BaseException as error:
        fail(run, error)
        raise
    return run.results


def run_prediction(run: Run, limit: float | None, ckpt_path: str | None, keep: Any) -> Any:
    """A whole `predict`."""
    try:
        hooks = open_other(run, "predict", ckpt_path)
        found = predict(
            run,
            hooks,
            run.evals,
            lambda: fit_loop.load_eval(run, run.evals, "predict", "predict_dataloader", limit),
            keep,
        )
        close(run, hooks, "predict", "success")
    except BaseException as error:
        fail(run, error)
        raise
    return found


# ---------------------------------------------------------------------- opening


def attach(run: Run, stage: str) -> None:
    """Connects module, datamodule and callbacks with the run, and lets the module add callbacks."""
    trainer, module = run.trainer, run.module
    run.live = True
    run.state.status = TrainerStatus.RUNNING
    run.state.stage = STAGES[stage]
    module._attach(trainer, run)
    if run.datamodule is not None:
        run.datamodule.trainer = trainer
    if overrides(module, "configure_callbacks"):
        more = module.configure_callbacks()
        more = list(more) if isinstance(more, (list, tuple)) else [more]
        trainer._merge_callbacks(more)
    attach_callbacks(run)


def attach_callbacks(run: Run) -> None:
    """Gives the callbacks the module's logging."""
    for callback in run.trainer.callbacks:
        callback.log = run.module.log
        callback.log_dict = run.module.log_dict


def set_up(run: Run) -> None:
    """prepare_data, the loggers, the setup hooks, configure_model."""
    module, datamodule = run.module, run.datamodule
    for owner in (datamodule, module):
        if owner is not None and overrides(owner, "prepare_data"):
            ranks.once_for_all(run, owner.prepare_data, getattr(owner, "prepare_data_per_node", True))
    folders.lock_loggers(run)
    folders.lock_checkpoints(run)
    ranks.share_versions(run)
    for logger in run.trainer.loggers:
        _ = getattr(logger, "experiment", None)  # an experiment is opened here, before anything is logged
        if run.starts_over and hasattr(logger, "start_over"):
            logger.start_over()
    for hook in resolve(run.receivers(), run.log).setup:
        hook(run.state.fn)
    folders.lock_checkpoints(run)
    if overrides(module, "configure_sharded_model"):
        if overrides(module, "configure_model"):
            raise UserCodeError(
                "Define configure_model or configure_sharded_model, not both; configure_model is the name"
            )
        warn("`configure_sharded_model` is the old name of configure_model; rename it.", DeprecationWarning)
        module.configure_sharded_model()
    if overrides(module, "configure_model"):
        with run.strategy.init_context(), run.precision.init_context():
            module.configure_model()


def open_fit(run: Run, ckpt_path: str | None) -> None:
    """Everything before the first training batch."""
    module = run.module
    attach(run, "fit")
    rank_log.connect(run)
    if not module.automatic_optimization:
        refuse_manual_settings(run)
    set_up(run)
    checkpoint = None
    if ckpt_path is not None:
        checkpoint = read(run, ckpt_path)
        load_placed = restore_module(run, checkpoint, ckpt_path, fitting=True)
    run.precision.convert_module(module)
    run.optimizers = run.strategy.prepare(module, lambda: build_optimizers(run))
    if checkpoint is not None:
        load_placed()
    run.schedulers += [LRSchedulerConfig(own, interval="step") for own in run.strategy.schedulers()]
    run.proxies = proxies_of(run)
    run.validation_enabled = validation_enabled(run)
    run.val_every = run.config.interval
    run.plan = plans.build(run)
    for hook in run.plan.hooks.on_fit_start:
        hook()
    log_hyperparams(run)
    if checkpoint is not None and ckpt_path is not None:
        restore_training(run, checkpoint, ckpt_path)
        info(f"Going on from {ckpt_path}: epoch {run.progress.epoch}, step {run.progress.step}.")
        saved = checkpoint.get("bolide")
        if elastic.other_size(run, saved) and run.train is None:
            fit_loop.load_train(run)  # the size of its batches tells how far the run is
        restore_run(run, elastic.of_this_rank(run, saved))
        del checkpoint
    if run.version != run.plan.version or run.restored:
        run.plan = plans.build(run)
    dry_collect(run)
    warn_eval_mode(run)
    module.zero_grad()
    fit_loop.sanity_check(run)
    run.log.epoch = run.progress.epoch
    run.state.stage = RunningStage.TRAINING


def open_other(run: Run, stage: str, ckpt_path: str | None) -> Hooks:
    """Everything before the first batch of an evaluation or a prediction."""
    module = run.module
    attach(run, stage)
    rank_log.connect(run)
    set_up(run)
    load_placed = None
    if ckpt_path is not None:
        load_placed = restore_module(run, read(run, ckpt_path), ckpt_path, fitting=False)
        info(f"The weights are those of {ckpt_path}.")
    run.precision.convert_module(module)
    run.strategy.prepare(module, None)
    if load_placed is not None:
        load_placed()
    log_hyperparams(run)
    module.zero_grad()
    run.log.epoch = run.progress.epoch
    return resolve(run.receivers(), run.log)


def read(run: Run, path: str) -> dict[str, Any]:
    """A checkpoint, by the format that the run writes: the user's own where one was given. All ranks must call it."""
    own = run.strategy.checkpoint_io
    return open_checkpoint(path) if own is None else own.load_checkpoint(path)


def build_optimizers(run: Run) -> list[Any]:
    """Calls `configure_optimizers`; keeps the schedulers, returns the optimizers.

    Raises:
        UserCodeError: not defined, or several optimizers in automatic optimization.
    """
    module = run.module
    if not overrides(module, "configure_optimizers"):
        raise UserCodeError(
            f"{type(module).__name__} has no configure_optimizers; write for example\n"
            "    def configure_optimizers(self):\n        return torch.optim.AdamW(self.parameters(), lr=1e-3)"
        )
    optimizers, run.schedulers = parse_optimizers(module.configure_optimizers(), module.automatic_optimization)
    if module.automatic_optimization:
        check_schedulers(run.schedulers, module)
        if len(optimizers) > 1:
            raise UserCodeError(
                f"configure_optimizers returned {len(optimizers)} optimizers, and automatic optimization steps one: "
                "set self.automatic_optimization = False in __init__ and step self.optimizers() in training_step"
            )
    return optimizers


def refuse_manual_settings(run: Run) -> None:
    """Refuses Trainer settings that manual optimization cannot follow.

    Raises:
        UserCodeError: gradient_clip_val or accumulate_grad_batches is set.
    """
    trainer = run.trainer
    if trainer.gradient_clip_val:
        raise UserCodeError(
            f"gradient_clip_val={trainer.gradient_clip_val} has no effect in manual optimization; leave it out and "
            "call self.clip_gradients(optimizer, gradient_clip_val=...) in training_step"
        )
    if trainer.accumulate_grad_batches != 1:
        raise UserCodeError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} has no effect in manual optimization; leave "
            "it out and step the optimizer every so many batches in training_step"
        )


def proxies_of(run: Run) -> list[LightningOptimizer]:
    """The optimizers as the user steps them."""
    proxies = [LightningOptimizer(optimizer) for optimizer in run.optimizers]
    for proxy in proxies:
        proxy._run = run
    return proxies


def estimated_steps(run: Run) -> int | float:
    """Optimizer steps that the whole fit will take; opens the training loader where it is not open yet."""
    trainer = run.trainer
    max_steps: float = math.inf if trainer.max_steps == -1 else trainer.max_steps
    if trainer.max_epochs == -1:
        return max_steps
    if run.train is None:
        fit_loop.load_train(run)
    if math.isinf(run.count):
        return max_steps
    per_epoch = [trainer.accumulate_grad_batches] * trainer.max_epochs
    for callback in trainer.callbacks:
        schedule = getattr(callback, "get_accumulate_grad_batches", None)
        if callable(schedule):
            per_epoch = [schedule(epoch) for epoch in range(trainer.max_epochs)]
    steps: int | float = min(sum(math.ceil(run.count / size) for size in per_epoch), max_steps)
    return steps


def validation_enabled(run: Run) -> bool:
    """Whether this fit validates: a validation_step, loaders for it, and no limit of zero."""
    if not overrides(run.module, "validation_step") or run.config.limit_val_batches == 0:
        return False
    has_loader = run.val.given is not None or any(
        overrides(owner, "val_dataloader") for owner in (run.datamodule, run.module)
    )
    if not has_loader:
        warn_once("There is a validation_step and no val_dataloader: this fit does not validate.", PossibleUserWarning)
    return has_loader


def warn_eval_mode(run: Run) -> None:
    """Says so when parts of the module are in eval mode as training starts: dropout and batch norm are off there."""
    found = sum(1 for sub in run.module.modules() if not sub.training)
    if found:
        warn(
            f"{found} part(s) of the module are in eval mode as training starts, and stay so; call module.train() "
            "before fit if that is not meant."
        )


def log_hyperparams(run: Run) -> None:
    """Tells the loggers the hyperparameters and the graph.

    Raises:
        UserCodeError: module and datamodule have the same hyperparameter with different values.
    """
    trainer = run.trainer
    if not trainer.loggers:
        return
    found: dict[str, Any] | None = None
    if trainer.enable_autolog_hparams:
        owners = [owner for owner in (run.module, run.datamodule) if owner is not None and owner._log_hyperparams]
        parts = [dict(owner.hparams_initial) for owner in owners]
        if parts and any(parts):
            found = dict(parts[0])
            for part in parts[1:]:
                clash = [key for key in part if key in found and not _same(found[key], part[key])]
                if clash:
                    raise UserCodeError(
                        f"The module and the datamodule both have the hyperparameter(s) {clash} with different values; "
                        "rename one, or write save_hyperparameters(logger=False) in one of them"
                    )
                found |= part
    for logger in trainer.loggers:
        if found is not None:
            logger.log_hyperparams(hide(found))
        logger.log_graph(run.module)
        logger.save()


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)


def dry_collect(run: Run) -> None:
    """Finds out before the first batch whether the callbacks' states can be saved at all.

    Raises:
        NotPlainError: a callback's state is neither tensors nor plain data.
    """
    from bolide.checkpoint.plain import to_plain

    if not run.trainer.checkpoint_callbacks or run.config.compat is not None:
        return
    for key, callback in keyed(run.trainer.callbacks):
        if overrides(callback, "state_dict"):
            to_plain(callback.state_dict(), f"callbacks.{key}")


def checkpoint_of(run: Run, weights_only: bool, in_parts: bool = False) -> dict[str, Any]:
    """What a checkpoint of the run holds now; with `in_parts`, what this rank has to write of it."""
    checkpoint = collect(run, weights_only, in_parts)
    if not weights_only:
        checkpoint["bolide"] |= ranks.of_all_ranks(run, saved_run(run))
    return share_of_this_rank(checkpoint) if in_parts else checkpoint


# ---------------------------------------------------------------------- closing


def close(run: Run, hooks: Hooks, stage: str, status: str) -> None:
    """The ordinary end: saves in flight, end hooks, teardown hooks, loggers."""
    run.trainer.finish_saves()
    if stage == "fit":
        for hook in hooks.on_fit_end:
            hook()
    run.log.publish()
    for hook in hooks.teardown:
        hook(run.state.fn)
    for logger in run.trainer.loggers:
        logger.finalize(status)
    if stage == "fit" and status == "success":
        mark_finished(run)
    run.state.status = TrainerStatus.FINISHED if status == "success" else TrainerStatus.INTERRUPTED
    release(run)


def mark_finished(run: Run) -> None:
    """Leaves word beside the checkpoints that this run came to its end, so that "auto" does not go on from it."""
    trainer, progress = run.trainer, run.progress
    clocks = [getattr(callback, "time_remaining", None) for callback in trainer.callbacks]
    out_of_time = any(clock is not None and (clock() or 0) < 0 for clock in clocks)
    unwanted = trainer.fast_dev_run or run.config.switches.leaves_no_mark_of_the_end or run.writer.last_failed
    if unwanted or not trainer.is_global_zero or out_of_time:
        return
    for callback in trainer.checkpoint_callbacks:
        folder = getattr(callback, "dirpath", None)
        if folder and io.is_dir(folder):
            about = About(step=progress.step, batches=progress.total_batches, run_id=run.run_id)
            try:
                store.mark_finished(str(folder), about)
            except OSError as error:
                warn(f"That this run is over could not be noted in {folder!r} ({error}): 'auto' would go on from it.")


def fail(run: Run, error: BaseException) -> None:
    """The end by an exception: the hooks for it, the loggers; the user's teardown hooks do not run."""
    ranks.tell_agent(run, error)
    run.state.status = TrainerStatus.INTERRUPTED
    run.log.scope = None
    try:
        finish_saves_quietly(run, run.signals, error)
        for hook in resolve(run.receivers(), run.log).on_exception:
            # the datamodule is told the exception alone, callbacks are bound to trainer and module
            try:
                hook(error)
            except Exception as second:  # noqa: BLE001  # the first is raised, and the others must hear of it, too
                warn(f"on_exception raised {second!r} while {error!r} was told.", stacklevel=3)
        finish_saves_quietly(run, run.signals, error)
        stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
        for logger in run.trainer.loggers:
            logger.finalize("interrupted" if stopped else "failed")
    finally:
        release(run)


def release(run: Run) -> None:
    """Lets go of what a run holds, so that its memory is free before the next."""
    run.live = False
    for hook in run.rate_hooks:
        hook.remove()
    run.rate_hooks = []
    run.log.close_batch()
    run.log.to_cpu()
    run.state.stage = None
    for proxy in run.proxies:
        proxy._run = None
    for callback in run.trainer.callbacks:
        for name in ("log", "log_dict"):
            callback.__dict__.pop(name, None)
    run.writer.let_go(partial(folders.unlock, run), finish=not run.signals.insisted)
    run.module._detach()
