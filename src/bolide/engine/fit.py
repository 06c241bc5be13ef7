"""The fit: one generator over epochs and batches, and what opens and closes an epoch.

`fit` is the loop: epochs, batches, step, commit, end hooks, log, validate, yield. `Trainer.fit` exhausts it,
`Trainer.steps` hands it to the user. Loaders are opened here, too; the work before the first and after the last batch
is engine/session's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bolide.checkpoint.parts import tensors_here
from bolide.checkpoint.snapshot import nbytes_of
from bolide.core.errors import UserCodeError
from bolide.core.hooks import overrides
from bolide.core.messages import PossibleUserWarning, info, warn_once
from bolide.core.phases import IDLE, RESTORING, TRAINING, VALIDATION
from bolide.core.progress import Progress
from bolide.core.states import RunningStage
from bolide.data.batches import batches, started
from bolide.data.loaders import eval_sources, set_epoch, train_source, without_shuffling
from bolide.engine import elastic, rank_log, ranks
from bolide.engine import plan as plans
from bolide.engine.evaluate import Handed, evaluate
from bolide.engine.optimizers import step_plateau_schedulers, step_schedulers
from bolide.engine.resume import go_on, goes_on, restore_place
from bolide.engine.signals import StopAsked, act
from bolide.engine.step import flush_window
from bolide.log import load_metric_states, metric_states
from bolide.seed import generators, global_seed, isolate_rng, set_generators

if TYPE_CHECKING:
    from bolide.engine.run import EvalData, Run

READY_FROM_BYTES = 1 << 24
"""A smaller state is copied in no time, whether the memory was made ready or not."""

MORE_BYTES = 1 << 20
"""For random states, metrics and what callbacks keep."""


def fit(run: Run) -> Iterator[Progress]:
    """Trains until a limit, a stop or an exception; yields the counters after each batch and what follows it."""
    progress, log, trainer = run.progress, run.log, run.trainer
    if not open_training(run):
        if run.saved is not None and run.train is not None:  # all was trained: the state is that of the end
            run.train.open_epoch(progress.epoch)
            go_on(run, validate_owed)
        return
    assert run.train is not None
    signals = run.signals
    signals.at_once = False  # from here on a signal waits for a step boundary
    run.phases.switch(TRAINING)
    # the first epoch's iterator is made before training starts, each later one after its epoch has started
    run.train.open_epoch(progress.epoch)
    iterator: Any = started(run.train, run.train.iterate()) if not goes_on(run) else None
    if run.validation_enabled and run.val.loaders is None and run.epoch_validates():
        run.state.stage = RunningStage.VALIDATING
        open_validation(run, run.val)
        run.state.stage = RunningStage.TRAINING
    for hook in run.plan.hooks.on_train_start:
        hook()
    if goes_on(run):
        with run.phases.within(RESTORING):
            iterator = go_on(run, validate_owed)
    while not finished(run):
        iterator = open_epoch(run, iterator)
        plan = run.plan
        pairs = batches(run.train, iterator, progress.batch)
        for wrap in plan.fetch_wrappers:
            pairs = wrap(pairs)
        iterator, skipped, answer = None, False, None
        for batch, last in Handed.over(pairs, run.train) if plan.takes_iterator else pairs:
            if run.version != plan.version:
                plan = run.plan = plans.build(run)
            batch_idx = progress.batch
            progress.is_last_batch = last
            run.stepped_in_batch = False
            if plan.transfer is not None and not plan.takes_iterator:
                batch = plan.transfer(batch, 0)
            log.open_batch(batch)
            for hook in plan.hooks.on_train_batch_start:
                answer = hook(batch, batch_idx)
            if plan.module_may_skip and answer == -1:
                skipped = True
                break

            try:
                outputs = plan.step(run, batch, batch_idx, last)
            except StopIteration as error:
                if not plan.takes_iterator:
                    raise UserCodeError(
                        "`training_step` raised StopIteration; return None to leave a batch out"
                    ) from error
                progress.is_last_batch = True
                break  # it drew more batches than there were: the epoch ends

            progress.commit_batch()
            steps = run.stepped_in_batch or not plan.automatic
            if steps:
                progress.stepped_batches += 1
            for hook in plan.hooks.on_train_batch_end:
                hook(outputs, batch, batch_idx)
            if steps and (
                progress.stepped_batches % plan.log_every == 0
                or (plan.logs and trainer.should_stop and run.stop_is_common)
            ):
                log.write(log.current(), None, progress.stepped_batches - 1)
            log.close_batch()
            validated = run.validation_enabled and run.validation_due(last)
            if validated:
                validate(run)
            if plan.has_plateau:
                step_plateau_schedulers(run, "step", batch_idx)
            if plan.savers:
                if not run.memory_is_ready and progress.step:
                    make_memory_ready(run)
                for saver in plan.savers:
                    rest = getattr(saver, "saver_rest", None)  # any callback may ask to be told as a saver is
                    if validated or rest is None or progress.step >= rest.until:
                        tell_savers(run, "batch", validated)
                        break
                else:
                    run.writer.poll()
            if signals.received is not None:
                act(run, signals)
            if trainer.should_stop:
                log.save()
            yield progress
            if progress.step >= run.plan.max_steps or (trainer.should_stop and run.may_stop_early()):
                break
        else:
            close_short_epoch(run)
        close_epoch(run, skipped)
    trainer.finish_saves()
    for hook in run.plan.hooks.on_train_end:
        hook()
    run.phases.switch(IDLE)


def finished(run: Run) -> bool:
    """Whether no further epoch begins."""
    ranks.agree(run, "the end of an epoch")
    reached = run.limits_reached()
    if reached is not None:
        info(reached)
        return True
    return run.stops_now()


# ---------------------------------------------------------------------- the training data


def open_training(run: Run) -> bool:
    """Opens the training loader; False where there is nothing to train on or no epoch to train."""
    if run.train is None:
        load_train(run)
    run.progress.close_epoch()
    if run.config.limit_train_batches == 0 or (not run.progress.epoch_open and finished(run)):
        return False
    if run.count == 0:
        raise no_batch()
    if not run.restored or run.val_every.unit == "seconds":
        run.val_timer_s = time.monotonic()
    check_interval(run)
    accumulate = run.trainer.accumulate_grad_batches
    if run.module.automatic_optimization and accumulate > run.count:
        warn_once(
            f"accumulate_grad_batches={accumulate} is more than the {run.count:g} batches of an epoch: each epoch ends "
            "with one step over its own batches, and no window is carried into the next."
        )
    log_every = run.trainer.log_every_n_steps
    if run.log.loggers and log_every > run.count and not run.trainer.fast_dev_run:
        warn_once(
            f"An epoch has {run.count:g} batches, and step metrics are logged every {log_every}: write "
            "Trainer(log_every_n_steps=...) for more points.",
            PossibleUserWarning,
        )
    return True


def check_interval(run: Run) -> None:
    """Whether validation can be due as often as `val_check_interval` says.

    Raises:
        UserCodeError: it cannot.
    """
    if run.val_every.unit == "batches" and run.config.check_val_every_n_epoch is not None:
        if run.val_every.count > run.count:
            raise UserCodeError(
                f"val_check_interval={run.config.val_check_interval} is more than the {run.count:g} batches of an "
                "epoch; write a smaller number, or check_val_every_n_epoch=None to count across epochs"
            )
    if run.val_every.unit == "share" and math.isinf(run.count) and run.val_every.count != 1.0:
        raise UserCodeError(
            f"val_check_interval={run.config.val_check_interval} is a share of an epoch, and the training loader has "
            "no length; write a number of batches"
        )


def load_train(run: Run) -> None:
    """Asks for the training loader, and makes a source of it."""
    config = run.config
    loaders = run.train_given if run.train_given is not None else from_hook(run, "train_dataloader")
    if config.overfit_batches > 0:
        loaders = without_shuffling(loaders, "training")
    run.train_loaders = loaders
    if run.strategy.distributed or elastic.scales(run):
        loaders = ranks.part_of(run, loaders, training=True)
    run.train = train_source(loaders, train_limit(run), key_seed(run))
    run.train_loaded_epoch = run.progress.epoch
    ranks.agree_on_length(run)


def train_limit(run: Run) -> float | None:
    """How many batches, or which share, of the training loader an epoch takes."""
    config = run.config
    return config.overfit_batches if config.overfit_batches > 0 else config.limit_train_batches


def key_seed(run: Run) -> int | None:
    """The seed by which samples draw their random numbers, where that was asked for."""
    if run.config.switches.workers_seed_themselves:
        return None
    seed, workers = global_seed()
    if workers or run.config.resilience.exact_resume:
        return seed if seed is not None else 0
    return None


def from_hook(run: Run, name: str) -> Any:
    """The loaders that the datamodule's, else the module's, hook gives.

    Raises:
        UserCodeError: neither has the hook, or it returned nothing.
    """
    owner = run.datamodule if overrides(run.datamodule, name) else run.module
    if not overrides(owner, name):
        raise UserCodeError(
            f"There is no {name}: give loaders to the trainer's call, or define {name} on the module or the datamodule"
        )
    loaders = getattr(owner, name)()
    if loaders is None:
        raise UserCodeError(f"`{name}` of {type(owner).__name__} returned None; return a DataLoader or any iterable")
    return loaders


def open_epoch(run: Run, iterator: Any) -> Any:
    """Begins the next epoch, or goes on with the one that is open; returns the iterator of its batches."""
    progress = run.progress
    assert run.train is not None
    reload = run.trainer.reload_dataloaders_every_n_epochs
    if reload and run.train_given is None and progress.epoch - run.train_loaded_epoch >= reload:
        load_train(run)
        iterator = None
    else:
        run.train.relimit(train_limit(run), resumed=progress.mid_epoch)
        ranks.agree_on_length(run)
    if run.val_every != run.config.interval:  # it was changed since
        run.val_every = run.config.interval
        check_interval(run)
    resumed = progress.mid_epoch
    run.validated_this_epoch = resumed and run.validated_this_epoch
    run.log.epoch = progress.epoch
    run.log.in_batch = False
    set_epoch(run.train.loader, progress.epoch)
    progress.open_epoch()
    if run.version != run.plan.version:
        run.plan = plans.build(run)
    if not resumed:
        for hook in run.plan.hooks.on_train_epoch_start:
            hook()
    if run.version != run.plan.version:
        run.plan = plans.build(run)
    if run.stops_now():
        return iter(())
    if iterator is None:
        run.train.open_epoch(progress.epoch)
        iterator = started(run.train, run.train.iterate())
    return iterator


def tell_savers(run: Run, kind: str, validated: bool = False) -> None:
    """Tells each saver that a "batch", and with it a validation, or an "epoch" is over: all else about it is done.

    What is saved meanwhile knows who has yet to save there.
    """
    trainer, module, batch_idx = run.trainer, run.module, run.progress.batch - 1
    run.boundary, done = (kind, validated), None
    run.writer.poll()
    for saver in run.plan.savers:
        run.saver = saver
        try:
            if kind == "epoch":
                saver.on_train_epoch_end(trainer, module)
            else:
                saver.on_train_batch_end(trainer, module, None, None, batch_idx)
                if validated:
                    saver.on_validation_end(trainer, module)
        except BaseException:
            run.saver = done  # what this one was to save is still to be saved
            raise
        done = saver
    run.boundary = run.saver = None


def make_memory_ready(run: Run) -> None:
    """Asks for the memory that the first save will copy the state into, now that the optimizer has its own."""
    run.memory_is_ready = True
    if run.writer.asynchronous:
        try:
            state: Any = [run.module.state_dict(), [optimizer.state_dict() for optimizer in run.optimizers]]
            nbytes = nbytes_of(tensors_here(state) if run.saves_parts else state)
        except Exception:  # noqa: BLE001  # a state that cannot be copied: the first save says so
            return
        if run.trainer.accumulate_grad_batches > 1:  # a save within a window holds its gradients, too
            nbytes += nbytes_of([parameter for parameter in run.module.parameters() if parameter.requires_grad])
        if nbytes >= READY_FROM_BYTES:
            run.writer.reserve(nbytes + MORE_BYTES)


def no_batch() -> UserCodeError:
    """The error for a training loader without a batch."""
    return UserCodeError(
        "The training loader gave no batch. Look at what it iterates over: an iterator that was used up, an empty "
        "dataset, or drop_last=True with fewer samples than a batch"
    )


def close_short_epoch(run: Run) -> None:
    """Ends an epoch whose loader gave fewer batches than it said, as its last batch would have ended it."""
    progress = run.progress
    if run.stops_now() or (progress.is_last_batch and progress.batch):
        return
    if progress.batch == 0:
        raise no_batch()
    if not math.isinf(run.count) and not run.plan.takes_iterator:
        warn_once(
            f"The training loader said it has {run.count:g} batches and ended after {progress.batch}; the epoch ends "
            "there."
        )
    plan = run.plan
    progress.is_last_batch = True
    if plan.automatic:
        if progress.batch % plan.accumulate:
            flush_window(run, progress.batch - 1)
        step_schedulers(run, "epoch", progress.batch - 1)
    if run.validation_due(True) and progress.validated_at != progress.total_batches:
        validate(run)


def close_epoch(run: Run, skipped: bool) -> None:
    """Ends the epoch: its hooks, the plateau schedulers, the loggers, the counters."""
    progress, log, plan = run.progress, run.log, run.plan
    log.close_batch()
    if skipped:
        progress.is_last_batch = True
        if plan.automatic:
            step_schedulers(run, "epoch", progress.batch)
    rank_log.reduce_epoch_values(run, "training")
    log.close_epoch_values()
    early = not skipped and not progress.is_last_batch
    if not early:
        progress.commit_epoch()
    for hook in plan.hooks.on_train_epoch_end:
        hook()
    if run.version != run.plan.version:
        plan = run.plan = plans.build(run)
    rank_log.reduce_epoch_values(run, "the end of a training epoch")
    log.publish()
    if plan.has_plateau:
        step_plateau_schedulers(run, "epoch", progress.batch)
    log.write(log.current(), None, progress.stepped_batches - 1, save=True)
    log.collections["train"].reset()
    tell_savers(run, "epoch")
    progress.close_epoch()
    if early:
        progress.leave_early()


# ---------------------------------------------------------------------- validation within the fit


def open_validation(run: Run, data: EvalData) -> None:
    """Brings the validation loaders up to date: asked for once, or every few epochs where that was asked."""
    reload = run.trainer.reload_dataloaders_every_n_epochs
    due = bool(reload) and run.progress.epoch - data.loaded_epoch >= reload and data.given is None
    if data.loaders is not None and not due:
        limit = eval_limit(run, "validate", run.config.limit_val_batches)
        if (type(limit), limit) != (type(data.limit), data.limit):  # changed since; 1 is a batch, and 1.0 all of them
            data.sources, data.limit = eval_sources(data.read, limit, "validate"), limit
        return
    load_eval(run, data, "validate", "val_dataloader", run.config.limit_val_batches)
    data.loaded_epoch = run.progress.epoch
    restore_place(data)


def load_eval(run: Run, data: EvalData, stage: str, hook: str, limit: float | None) -> None:
    """Asks for the loaders of an evaluation, and makes sources of them."""
    loaders = data.given if data.given is not None else from_hook(run, hook)
    if run.config.overfit_batches > 0 and stage == "validate":
        loaders = without_shuffling(loaders, "validation")
    data.loaders = loaders
    data.read = ranks.part_of(run, loaders, training=False) if run.strategy.distributed else loaders
    data.limit = eval_limit(run, stage, limit)
    data.sources = eval_sources(data.read, data.limit, stage)


def eval_limit(run: Run, stage: str, limit: float | None) -> float | None:
    """How many batches, or which share, of each loader an evaluation takes."""
    overfit = run.config.overfit_batches
    return overfit if overfit > 0 and stage == "validate" and run.state.fn == "fit" else limit


def validate(run: Run) -> None:
    """Validates in the midst of training."""
    module, progress, plan = run.module, run.progress, run.plan
    before = run.state.stage
    run.state.stage = RunningStage.VALIDATING
    if plan.automatic and progress.batch % plan.accumulate and not progress.is_last_batch:
        pass  # the gradients of an open window are kept
    elif overrides(module, "on_validation_model_zero_grad"):
        module.on_validation_model_zero_grad()
    else:
        module.zero_grad()
    validated_before = progress.validated_at, run.validated_this_epoch
    progress.validated_at = progress.total_batches
    run.validated_this_epoch = True
    place = (generators(), metric_states(module))
    try:
        if run.signals.received is not None:
            raise StopAsked
        with run.phases.within(VALIDATION):
            evaluate(run, plan.hooks, "validation", run.val, lambda: open_validation(run, run.val), standalone=False)
    except StopAsked:
        # as if it had not begun: what is saved now validates when it goes on
        set_generators(place[0])
        load_metric_states(module, place[1])
        progress.validated_at, run.validated_this_epoch = validated_before
        run.state.stage = before
        run.owes_validation = True
        run.boundary, run.saver = ("batch", True), None
        act(run, run.signals)
    ranks.agree(run, "the end of a validation")
    run.val_timer_s = time.monotonic()
    run.state.stage = before
    if run.version != run.plan.version:
        run.plan = plans.build(run)


def validate_owed(run: Run) -> None:
    """The validation that a signal broke off, and what follows it."""
    validate(run)
    if run.plan.has_plateau:
        step_plateau_schedulers(run, "step", run.progress.batch - 1)


def sanity_check(run: Run) -> None:
    """A few validation batches before training, so that a mistake there shows at once; they leave no trace."""
    batches_asked = run.trainer.num_sanity_val_steps
    if not run.validation_enabled or not batches_asked or run.progress.mid_epoch:
        return
    before = run.state.stage
    run.state.stage = RunningStage.SANITY_CHECKING
    hooks = run.plan.hooks
    with isolate_rng():
        for hook in hooks.on_sanity_check_start:
            hook()
        limit = None if batches_asked == -1 else batches_asked
        evaluate(
            run, hooks, "validation", run.val, lambda: open_validation(run, run.val),
            standalone=False, limit=limit, log_results=False,
        )  # fmt: skip
        for hook in hooks.on_sanity_check_end:
            hook()
    run.log.clear()
    run.state.stage = before
    if run.version != run.plan.version:
        run.plan = plans.build(run)
