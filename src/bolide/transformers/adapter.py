"""The second door on the one engine: a LightningModule for the model, a callback for the trainer's flow.

`Adapter.training_step` is one optimizer step: its batches forward and backward, clip, step, schedule. `Bridge` hears
the engine's moments, and logs, evaluates and saves in the order that callbacks of the second door know. Who calls: the
engine; the trainer of the second door makes both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from bolide.callbacks.checkpoint import Checkpoint
from bolide.engine.optimizers import clear_gradients, step_of
from bolide.module import LightningModule
from bolide.transformers import ranks, weights
from bolide.transformers.data import Window
from bolide.transformers.loss import loss_in, one_loss

if TYPE_CHECKING:
    from bolide.engine.run import Run


class Adapter(LightningModule):
    """The user's model, as the engine trains it. One batch of the engine is one optimizer step.

    Args:
        owner: the trainer of the second door.
        model: what it trains.
    """

    def __init__(self, owner: Any, model: nn.Module) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.owner = owner
        self.model = model
        self.__dict__["net"] = model  # the same, found without a module's look-up
        self.hears_within_steps = True
        self.is_mixed = self.is_plain = self.was_skipped = False

    # ------------------------------------------------------------------ weights under the model's own names

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The model's."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Gives the model weights that weights.read found; where the trainer's subclass reads them itself, it does."""
        if self.owner._overrides("_load_from_checkpoint"):
            self.owner._load_from_checkpoint(self.owner._goes_on_from)
            return nn.modules.module._IncompatibleKeys([], [])
        weights.load(self.model, state_dict, "the checkpoint")
        return nn.modules.module._IncompatibleKeys([], [])

    # ------------------------------------------------------------------ one optimizer step

    def configure_optimizers(self) -> Any:
        """The trainer's optimizer and scheduler, built now that the model is where it trains."""
        owner = self.owner
        owner._ready_to_step(owner.state.max_steps)
        self.is_mixed = self._running("configure_optimizers").precision.row.autocast is not None
        self.choose_step()
        # a norm is a sum of floats, and the order of its terms is that of the model
        parameters = list(self.model.parameters())
        self.in_model_order: Any = SimpleNamespace(param_groups=[{"params": parameters}])
        stepped = {id(p) for group in owner.optimizer.param_groups for p in group["params"]}
        # an optimizer of a part of the model clears no others' gradients, which would add up, and count in the norm
        self.beside_optimizer = [] if owner.args.deepspeed else [p for p in parameters if id(p) not in stepped]
        return [owner.optimizer], [owner.lr_scheduler]

    def end_epoch(self) -> None:
        """Ends the running epoch at its next batch, of which nothing is trained."""
        self.__dict__["on_train_batch_start"] = lambda batch, batch_idx: -1  # no hook is asked where none is wanted
        self.trainer._bump()

    def begin_epoch(self) -> None:
        """The next epoch runs to its end, until somebody asks otherwise."""
        if self.__dict__.pop("on_train_batch_start", None) is not None:
            self.trainer._bump()

    def choose_step(self) -> None:
        """Picks the step, again wherever somebody may have changed what it depends on."""
        owner = self.owner
        self.hears_within_steps = owner.callback_handler.hears_within_steps or owner._own_rate or owner._own_clip
        self.is_plain = not (self.is_mixed or self.hears_within_steps) and self.owner._steps_plainly()
        chosen: Any = self.mixed_training_step if self.is_mixed else self.plain_training_step if self.is_plain else None
        before = self.__dict__.pop("training_step", None)
        if chosen is not None:
            self.__dict__["training_step"] = chosen
        if chosen != before:
            self.trainer._bump()

    def plain_training_step(self, batch: Any, batch_idx: int) -> None:
        """`training_step` in the usual case: one batch, and nobody has a say in how its loss comes about."""
        owner, net, control = self.owner, self.__dict__["net"], self.owner.control
        control.should_log = control.should_evaluate = control.should_save = False
        if not net.training:
            net.train()
        loss = loss_in(net(**batch), batch)
        if loss.dim() or not loss.requires_grad:
            loss = one_loss(loss, net)
        loss.backward()
        run = self.__dict__["_run"]
        self.finish_step(owner, run, loss.detach())
        owner.state.global_step = run.progress.step
        if (
            control.should_training_stop or control.should_epoch_stop or control.should_log
            or control.should_evaluate or control.should_save
        ):  # fmt: skip
            owner.callback_handler.rest.until = 0  # the model, its data or another thread has asked for something

    def mixed_training_step(self, batch: Any, batch_idx: int) -> None:
        """`training_step`, where mixed precision is for the loss alone, which asks for it itself."""
        with torch.autocast(self._running("training_step").precision.device.type, enabled=False):
            type(self).training_step(self, batch, batch_idx)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One optimizer step: a batch, or a window of them."""
        owner, run, net = self.owner, self.__dict__["_run"], self.net
        several, control = owner._several, owner.control
        more: tuple[Any, ...] = ()
        control.should_log = control.should_evaluate = control.should_save = False
        if self.hears_within_steps:
            owner._tell("on_step_begin")
        window = batch if batch.__class__ is Window else (batch,)
        if owner._weighs:
            window, count = owner._weigh(window)
            more = (count,) if owner._step_takes_count else ()
        final, total = len(window) - 1, None
        if several:
            owner._backwards = 0
            owner._batch_shares = owner._batch_shares or [1.0] * len(window)
        for i, inputs in enumerate(window):
            if final:
                owner._is_last_of_step = i == final
                run.strategy.set_sync(i == final or owner._syncs_each_batch)
            if owner._loss_weights is not None:
                owner._loss_weight = owner._loss_weights[i]
            if several:
                owner._loss_scale, owner._batch_share, owner._weighed = (
                    owner._loss_scales[i],
                    owner._batch_shares[i],
                    False,
                )
            loss = owner.training_step(net, inputs, *more)
            if several and not owner._weighed:
                loss = loss * owner._batch_share
            total = loss if total is None else total + loss
            if owner._counts_work and not (several and owner._batch_share == 0.0):
                owner._count_work(inputs)
            if i != final:
                owner._tell("on_substep_end")
        owner._loss_weight = None
        if several:
            ranks.check_backward(owner)
            owner._share_tokens()
        self.finish_step(owner, run, total)

    def finish_step(self, owner: Any, run: Run, loss: Tensor | None) -> None:
        """What follows the backward pass: clip, step, schedule, forget the gradients."""
        optimizer, scaler, progress, record = run.optimizers[0], run.precision.scaler, run.progress, owner._losses
        record.add(loss)
        if scaler is not None:
            scaler.unscale_(optimizer)
        limit, heard = owner.args.max_grad_norm, self.hears_within_steps
        if limit and heard and owner._own_clip:
            record.norm = owner._clip_grad_norm(self.net)
        elif limit:
            record.norm = run.strategy.clip(self.in_model_order, limit, "norm")
        elif progress.step + 1 >= owner.callback_handler.rest.until or progress.is_last_batch:
            record.norm = self.norm_where_logged(run)
        record.lr = optimizer.param_groups[0]["lr"]
        skipped = False
        if heard:
            if owner._own_rate:
                record.lr = owner._get_learning_rate()
            owner._tell("on_pre_optimizer_step")
        if scaler is None:
            step_of(optimizer)()
        else:
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            self.was_skipped = skipped = scaler.get_scale() < before
        progress.commit_step()
        run.stepped_in_batch = True
        if heard:
            owner._tell("on_optimizer_step")
        if owner._steps_scheduler and not skipped:
            owner.lr_scheduler.step()
        clear_gradients(optimizer)
        for parameter in self.beside_optimizer:
            parameter.grad = None

    def norm_where_logged(self, run: Run) -> Tensor | None:
        """The norm of gradients that are not clipped, where the step is logged; else None: it costs something."""
        if not run.strategy.gradients_on_parameters or not self.owner._logs_after(
            run.progress.step + 1, run.progress.is_last_batch
        ):
            return None
        grads = [p.grad for p in self.in_model_order.param_groups[0]["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    # ------------------------------------------------------------------ evaluation

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        """One batch of an evaluation."""
        self.owner._collect(batch)


class Bridge(Checkpoint):
    """Tells the callbacks of the second door what happens, and does what they ask for: log, evaluate, save, stop.

    It hears the ends of steps and epochs when all else about them is done.

    Args:
        owner: the trainer of the second door.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.resumed: dict[str, Any] | None = None
        self.cut_an_epoch = False

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """Training begins, or goes on."""
        owner = self.owner
        owner._begin(self.resumed)
        self.cut_an_epoch = bool(self.resumed and self.resumed.get("cut_an_epoch"))
        owner.callback_handler.rest.until = 0
        self.choose_step()
        self.resumed = None
        if owner._several:
            ranks.agree(owner, "the start of training")
        progress = trainer.progress
        ends = progress.mid_epoch and progress.is_last_batch and progress.batch >= owner._updates_per_epoch
        if not ends:  # else the end of that epoch is still to be told of, and stops by itself
            self.stop_where_asked(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: LightningModule) -> None:
        """An epoch begins."""
        owner = self.owner
        owner.control.should_epoch_stop = False
        owner._adapter.begin_epoch()
        owner._tell("on_epoch_begin")
        owner.callback_handler.rest.until = 0  # what a callback asked for just now holds after the first step
        self.choose_step()

    def choose_step(self) -> None:
        """Picks the step; where it is the plain one, nobody looks at the epoch until there is something to do."""
        owner = self.owner
        owner._adapter.choose_step()
        rests = owner._adapter.is_plain and not (owner.args.torch_empty_cache_steps or owner._acts_itself)
        self.saver_rest = owner.callback_handler.rest if rests else Checkpoint.saver_rest

    def count(self, trainer: Any) -> None:
        """Brings the record up to the steps that are done."""
        owner, progress = self.owner, trainer.progress
        state, batches = owner.state, owner._batches_per_epoch
        state.global_step = progress.step
        if batches != math.inf:
            state.epoch = progress.epoch + min(progress.batch * owner._window_size, batches) / batches
        else:
            state.epoch = progress.epoch + progress.batch / max(1, state.max_steps)

    def on_train_batch_end(
        self, trainer: Any, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """An optimizer step is over."""
        owner = self.owner
        self.count(trainer)
        state, rest = owner.state, owner.callback_handler.rest
        step = state.global_step
        if owner.args.torch_empty_cache_steps and step % owner.args.torch_empty_cache_steps == 0:
            owner.accelerator.free_memory()
        if any(getattr(owner.control, wish) for wish in ranks.WISHES):  # asked for within the step, so it must be heard
            rest.until = 0
        if step < rest.until:
            if not owner._several:
                return
        else:
            owner._tell("on_step_end")
        if owner._several:
            ranks.agree(owner, "the end of a step")
        control = owner.control
        if control.should_log or control.should_evaluate or control.should_save or owner._acts_itself:
            owner._act()
            control = owner.control
        self.stop_where_asked(trainer)
        if control.should_epoch_stop:
            owner._adapter.end_epoch()
        if step < rest.until:
            return
        self.choose_step()
        if not owner._acts_itself:
            owner.callback_handler.look_ahead(owner.args, state)

    def on_train_epoch_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """An epoch is over."""
        self.count(trainer)
        owner = self.owner
        control = owner.control
        self.cut_an_epoch |= control.should_epoch_stop  # such epochs count, so that steps are left at the end
        if self.cut_an_epoch and trainer.progress.epoch + 1 >= owner.state.num_train_epochs:
            control.should_training_stop = True
        control.should_log = control.should_evaluate = control.should_save = False
        control = owner._tell("on_epoch_end")
        if owner._several:
            ranks.agree(owner, "the end of an epoch")
        if control.should_log or control.should_evaluate or control.should_save or owner._acts_itself:
            owner._act()
        self.stop_where_asked(trainer)

    def on_exception(self, trainer: Any, pl_module: LightningModule, exception: BaseException) -> None:
        """Training ends here: the record is that of the steps done."""
        if self.saver_rest is not Checkpoint.saver_rest:
            self.count(trainer)

    def stop_where_asked(self, trainer: Any) -> None:
        """Ends training where a callback asked for that."""
        owner = self.owner
        if owner.control.should_training_stop or owner.state.global_step >= owner.state.max_steps:
            trainer.should_stop = True
            if owner._several:  # all ranks have agreed on it, and need not hear of it in the next step
                owner._adapter._running("training").stop_agreed = True

    def state_dict(self) -> dict[str, Any]:
        """What trainer_state.json has no place for: losses that are not logged yet, a stop that was asked for."""
        owner = self.owner
        control = owner.control
        return {
            "losses": owner._losses.state_dict(),
            "stop": bool(control.should_training_stop and owner.state.global_step < owner.state.max_steps),
            "stop_epoch": bool(control.should_epoch_stop),
            "cut_an_epoch": self.cut_an_epoch,
            "max_steps": owner.state.max_steps,
            "loggers": [logger.position(owner.args) for logger in owner.callback_handler.loggers],
            "made_rates": list(owner._made_rates),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes it back, once training begins."""
        self.resumed = state_dict

    def save_on_stop(self, trainer: Any) -> str | None:
        """Saves because the run was told to stop; the path of the checkpoint, or None where nothing is saved."""
        self.count(trainer)
        owner = self.owner
        if owner.args.save_strategy == "no" or owner.state.global_step == 0:
            return None
        return str(owner._save_now())
