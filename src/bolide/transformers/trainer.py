"""`Trainer`: the second door. Its constructor, `train`, and the override points of a step.

Owns what a script of transformers touches; the training itself is the engine's, through adapter.py. Loaders and
optimizers are in making.py, evaluation in evaluating.py, saving and logging in keeping.py, what trains more than once
in repeating.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from torch import Tensor, nn

from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.messages import warn
from bolide.data.loaders import set_epoch
from bolide.trainer.trainer import Trainer as Engine
from bolide.transformers import callbacks as flow
from bolide.transformers import loss as losses
from bolide.transformers import overrides, ranks, reporting, setup, state
from bolide.transformers.accelerator import Accelerator
from bolide.transformers.adapter import Adapter, Bridge
from bolide.transformers.arguments import TrainingArguments
from bolide.transformers.data import windows
from bolide.transformers.evaluating import Evaluating
from bolide.transformers.folders import FolderFormat, rotate, tell_of_earlier_run
from bolide.transformers.keeping import Keeping, counts_parameters
from bolide.transformers.losses import LossRecord
from bolide.transformers.making import Making
from bolide.transformers.memory import MemoryRecord
from bolide.transformers.optimizers import switches
from bolide.transformers.repeating import Repeating
from bolide.transformers.starting import Starting
from bolide.transformers.utilities import enable_full_determinism, set_seed, speed_metrics
from bolide.transformers.weights import unwrapped

Dataset = Any


class Trainer(Starting, Making, Evaluating, Keeping, Repeating, ranks.SharedStep):
    """Trains and evaluates a model on datasets, as TrainingArguments say.

    Args:
        model: a PreTrainedModel, a PEFT model, or any nn.Module whose forward takes a batch's entries by name and
            returns the loss first or under "loss".
        args: the settings; a default run into "tmp_trainer" where not given.
        data_collator: makes a batch of a list of samples.
        train_dataset: what is trained on: map-style or iterable.
        eval_dataset: what is evaluated on: one, or several by name.
        processing_class: the tokenizer or processor, saved with the model.
        model_init: makes the model, given nothing or the trial of a search; in the place of model.
        compute_loss_func: (outputs, labels, num_items_in_batch=) -> loss.
        compute_metrics: (EvalPrediction) -> metrics by name.
        callbacks: more callbacks, or classes of them.
        optimizers: an optimizer and a scheduler of one's own; either may be None.
        optimizer_cls_and_kwargs: an optimizer's class and its arguments.
        preprocess_logits_for_metrics: (logits, labels) -> what is kept of the logits.
        old: spellings of earlier releases: tokenizer.

    Raises:
        ConfigError: lists everything that is wrong or contradicts itself.

    Example::

        trainer = Trainer(model, TrainingArguments("out"), train_dataset=data)
        trainer.train()
    """

    loss_is_scaled_for_ga: bool | None = None
    """Set by a subclass whose loss is divided by num_items_in_batch already (True), or never is (False)."""

    current_gradient_accumulation_steps = 1
    """Batches of the running step: fewer than gradient_accumulation_steps in a last one that is short."""

    hp_search_backend: Any = None
    """What searches, while a search runs."""

    is_distributed_loading_by_transformers = is_fsdp_xla_enabled = is_fsdp_xla_v1_enabled = False
    is_fsdp_xla_v2_enabled = False

    model_accepts_loss_kwargs: bool
    label_names: list[str]
    can_return_loss: bool
    _has_trained = False

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | Mapping[str, Dataset] | None = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        **old: Any,
    ) -> None:
        args = args if args is not None else TrainingArguments("tmp_trainer")
        setup.refuse_other_arguments(args)
        processing_class, wrong = setup.with_old_names(processing_class, old)
        given = {
            "model": model, "model_init": model_init, "eval_dataset": eval_dataset, "train_dataset": train_dataset,
            "optimizers": optimizers, "optimizer_cls_and_kwargs": optimizer_cls_and_kwargs,
            "compute_metrics": compute_metrics, "callbacks": callbacks or (),
        }  # fmt: skip
        wrong += [text for rule in setup.RULES for text in rule(args, given)]
        wrong += overrides.without_effect(type(self), Trainer, args.shards_model)
        if wrong:
            raise ConfigError(wrong)
        self.args = args
        self._memory = MemoryRecord(not args.skip_memory_metrics)
        self._memory.start("init")
        self._several = args.world_size > 1
        setup.set_log_level(args)
        set_seeds(args)
        self.model_init = model_init
        self.hp_name: Any = None
        self._trial: Any = None
        self.is_in_train = False
        self.model: Any = model if model is not None else self.call_model_init()
        setup.refuse_without_activation_checkpointing(args, self.model)
        self.model_wrapped: Any = self.model
        self.data_collator = data_collator or setup.collator_for(processing_class)
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.label_smoother = setup.label_smoother(args, self.model)
        self.hub_model_id: str | None = None
        self._pushes: list[Any] = []
        self.current_flos = 0.0
        self._losses = LossRecord(args.logging_nan_inf_filter)
        self._is_last_of_step = True
        self._loss_weight: Any = None
        self._loss_weights: Any = None
        if self._several:
            ranks.open_ranks(args)
        self._found_of_model: dict[str, Any] = {}
        self._look_at_model()
        self._made_adapter: Adapter | None = None
        self._made_engine: Engine | None = None
        self._engine_loader: Any = None
        self._updates_per_epoch = 0
        self._steps_before = 0
        self.create_accelerator_and_postprocess()
        self._place_as_overridden()
        default = [*flow.DEFAULT_CALLBACKS, *reporting.callbacks_for(list(args.report_to or ()))]
        self.callback_handler = flow.CallbackHandler([*default, *(callbacks or ())])
        self._validate_args()
        self.add_callback(flow.PrinterCallback if args.disable_tqdm else flow.DEFAULT_PROGRESS_CALLBACK)
        self._tell_callbacks_of(train_dataloader=None, eval_dataloader=None)
        self.state = self._new_state()
        self.control = state.TrainerControl()
        if args.push_to_hub:  # a missing token shows now, not when the training is done
            self.init_hf_repo()
        self._tell("on_init_end")
        self._memory.stop("init")

    def create_accelerator_and_postprocess(self) -> None:
        """Makes `self.accelerator`; an override may make another one, or change it after super()."""
        self.accelerator: Any = Accelerator(self)

    # ------------------------------------------------------------------ what a run works with

    def _look_at_model(self) -> None:
        """What must be known of the model and of overridden methods, found out once."""
        base = losses.base_of(self.model)
        found = {
            "model_accepts_loss_kwargs": losses.accepts_count(self.model),
            "label_names": setup.label_names(self.args, base),
            "can_return_loss": setup.returns_loss_by_default(base),
        }
        known = vars(self)
        for name, value in found.items():
            if known.get(name) is self._found_of_model.get(name):  # else a script has set it
                known[name] = self._found_of_model[name] = value
        self._shifts_labels = losses.is_causal(self.model)
        self._step_takes_count = losses.can_be_given(self.training_step, None, None, None)
        self._loss_takes_count = losses.can_be_given(self.compute_loss, None, None, num_items_in_batch=None)
        own_loss = self._overrides("compute_loss")
        self._own_samples = self._overrides("get_batch_samples", "_get_num_items_in_batch")
        self._acts_itself = self._overrides("_maybe_log_save_evaluate")
        self._own_rate, self._own_clip = self._overrides("_get_learning_rate"), self._overrides("_clip_grad_norm")
        self._syncs_each_batch = (self.args.accelerator_config.gradient_accumulation_kwargs or {}).get(
            "sync_each_batch"
        )
        self._own_input = self._overrides("_prepare_input")
        self._passes_count = self._loss_takes_count and (
            self.model_accepts_loss_kwargs or self.compute_loss_func is not None or own_loss
        )
        self._uses_count: bool | None = self.loss_is_scaled_for_ga if self._passes_count else False
        self._weighs = self._own_samples or self._passes_count or self.args.gradient_accumulation_steps > 1
        self._weighs |= self._several
        own_context = self._overrides("compute_loss_context_manager", "autocast_smart_context_manager")
        self._plain_context = not own_context and not (self.args.fp16 or self.args.bf16)
        self._counts_work = self._overrides("floating_point_ops") or counts_parameters(base)
        self._counts_work |= self.args.include_num_input_tokens_seen != "no"
        self._flos_per_token: float | None = None
        self._own_prepare = self._overrides("_prepare_inputs", "_prepare_input")
        self._moves, self._plain_backward = True, False  # known once the engine runs

    def _overrides(self, *names: str) -> bool:
        """Whether a subclass, or this instance, has a method of its own under one of the names."""
        return any(getattr(type(self), n) is not getattr(Trainer, n) or n in vars(self) for n in names)

    def _steps_plainly(self) -> bool:
        """Whether a step is one batch whose loss is the model's: nothing weighs, moves, replaces or counts it."""
        return (
            self._plain_context and self._plain_backward and not (self._moves or self._weighs or self._counts_work)
            and self.label_smoother is None and self.compute_loss_func is None
            and not self._overrides("training_step", "compute_loss")
        )  # fmt: skip

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from `model_init`."""
        assert self.model_init is not None
        takes_trial = len(setup.parameters_of(self.model_init)) == 1
        model = self.model_init(trial) if takes_trial else self.model_init()
        if model is None:
            raise UserCodeError("model_init returned None; return the model")
        return model

    @property
    def _engine(self) -> Engine:
        """The engine's trainer, which runs everything; made when it is first needed."""
        if self._made_engine is None:
            self._made_engine = self._new_engine()
        return self._made_engine

    @property
    def _adapter(self) -> Adapter:
        """The model as the engine sees it."""
        if self._made_adapter is None or self._made_adapter.model is not self.model_wrapped:
            self._made_adapter = Adapter(self, self.model_wrapped)
        return self._made_adapter

    def _adapter_to_evaluate(self) -> Adapter:
        """The adapter of `model`, which a script may have replaced by another, in the midst of training, too."""
        if unwrapped(self.model) is unwrapped(self.model_wrapped):
            return self._adapter
        return Adapter(self, self.model)

    def _new_engine(self) -> Engine:
        args = self.args
        device = args.device if self.place_model_on_device else setup.device_of(self.model)
        return Engine(
            accelerator={"cpu": "cpu", "cuda": "cuda", "mps": "mps"}.get(device.type, "auto"),
            precision="16-mixed" if args.fp16 else "bf16-mixed" if args.bf16 else None,
            logger=False,
            callbacks=[Bridge(self)],
            max_epochs=-1,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=0,
            inference_mode=False,
            default_root_dir=args.output_dir,
            plugins=[FolderFormat(self)],
            **ranks.engine_settings(args, self.model),
        )

    def _new_state(self) -> Any:
        return state.TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )

    def _tell_callbacks_of(self, **more: Any) -> None:
        """What callbacks are given with each event."""
        self.callback_handler.more.update(
            model=self.model, processing_class=self.processing_class, tokenizer=self.processing_class,
            optimizer=self.optimizer, lr_scheduler=self.lr_scheduler, **more,
        )  # fmt: skip

    def _tell(self, event: str, **kwargs: Any) -> Any:
        """Tells callbacks of an event; returns the control that holds from then on."""
        self.control = self.callback_handler.tell(event, self.args, self.state, self.control, **kwargs)
        return self.control

    @property
    def _train_batch_size(self) -> int:  # read by scripts and by packages that build on the Trainer
        return self.args.train_batch_size

    @property
    def neftune_noise_alpha(self) -> float | None:
        """The strength of the noise on embeddings."""
        return self.args.neftune_noise_alpha

    @property
    def place_model_on_device(self) -> bool:
        """Whether the model is moved to the device."""
        return self.args.place_model_on_device if self._places_model is None else self._places_model

    @place_model_on_device.setter
    def place_model_on_device(self, value: bool) -> None:
        self._places_model = value

    @property
    def gather_function(self) -> Callable[..., Any]:
        """What joins the tensors of an evaluation's batch over the processes: the accelerator's gather_for_metrics."""
        return partial(self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object)

    @property
    def is_deepspeed_enabled(self) -> bool:
        """Whether DeepSpeed trains."""
        return bool(self.args.deepspeed)

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether the model is spread over the processes by FSDP."""
        return self.args.shards_model and not self.args.deepspeed

    @property
    def tokenizer(self) -> Any:
        """The old name of `processing_class`."""
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, value: Any) -> None:
        self.processing_class = value

    # ------------------------------------------------------------------ training

    def train(
        self,
        resume_from_checkpoint: str | os.PathLike[str] | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **old: Any,
    ) -> state.TrainOutput:
        """Trains to the end.

        Args:
            resume_from_checkpoint: True or "auto": goes on from the newest whole checkpoint in output_dir, and starts
                where there is none. A path: goes on from that folder. None or False: starts.
            trial: of a search: an optuna trial, or the settings that it chose.
            ignore_keys_for_eval: outputs of the model that evaluations leave out.
            old: model_path, the old name of resume_from_checkpoint.

        Returns:
            The steps done, the mean loss of the steps of this call, and the figures of the run.

        Raises:
            CheckpointError: the named folder cannot be used.
        """
        if "model_path" in old:
            warn("model_path is the old name of resume_from_checkpoint; write that.", FutureWarning)
            resume_from_checkpoint = old.pop("model_path")
        if old:
            raise ConfigError([f"train() has no argument {name!r}" for name in old])
        if self.train_dataset is None and type(self).get_train_dataloader is Trainer.get_train_dataloader:
            raise ConfigError("train() needs train_dataset; write Trainer(train_dataset=...)")
        self.is_in_train = True
        self._trial = trial
        self._ignore_keys_for_eval = ignore_keys_for_eval
        try:
            if not self.args.auto_find_batch_size:
                return self._inner_training_loop(**self._loop_settings(resume_from_checkpoint))
            return self._train_with_smaller_batches(resume_from_checkpoint)
        finally:
            self.is_in_train = False

    def _loop_settings(self, resume: Any) -> dict[str, Any]:
        return {
            "batch_size": self.args.train_batch_size, "args": self.args, "resume_from_checkpoint": resume,
            "trial": self._trial, "ignore_keys_for_eval": self._ignore_keys_for_eval,
        }  # fmt: skip

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> state.TrainOutput:
        """One training, from its first or a later step to its end; an override may do something around super().

        Raises:
            ConfigError: other arguments than the trainer's.
        """
        if args is not None and args is not self.args:
            raise ConfigError("_inner_training_loop trains with self.args; change those in the place of args=...")
        args = self.args
        self._ignore_keys_for_eval = ignore_keys_for_eval
        self._memory.start("train")
        if self.model_init is not None:
            set_seeds(args)
            self.model = self.model_wrapped = self.call_model_init(self._trial)
            self.optimizer = self.lr_scheduler = None
            self._places_model = None
            self._place_as_overridden()
        if unwrapped(self.model) is not unwrapped(self.model_wrapped):  # replaced by the script
            self.model_wrapped = self.model
            if self.optimizer is self._made_optimizer:
                self.optimizer = None
        if args.deepspeed:
            from bolide.transformers import zero

            zero.refuse_again(args, self._has_trained)
            self.optimizer = self.lr_scheduler = None  # its engine puts tensors of its own into an optimizer
        if self.lr_scheduler is self._made_scheduler:
            self.lr_scheduler = None  # another training has a schedule of its own; one that was given goes on
        self._made_engine = self._made_adapter = None
        self._look_at_model()
        setup.prepare_model(self)
        self._started_s = started_s = time.time()
        loader = self.get_train_dataloader()
        accumulate = args.gradient_accumulation_steps
        if self._several:
            loader = ranks.over_ranks(loader, args, training=True)
        samples = self._count_steps(loader)
        self.state.train_batch_size = args.train_batch_size
        self._engine_loader = ranks.windows(loader, accumulate) if self._several else windows(loader, accumulate)
        self._tell_callbacks_of(train_dataloader=loader)
        folder = self._folder_to_go_on_from(resume_from_checkpoint)
        if folder is not None:
            self._take_state(folder)
        elif not resume_from_checkpoint and args.should_save and args.save_strategy != "no" and self._trial is None:
            tell_of_earlier_run(self._get_output_dir(self._trial))
        self._newest_checkpoint = folder
        self._steps_before = self.state.global_step
        self._evaluated_at = None
        self.control.should_training_stop = False
        self._losses = LossRecord(args.logging_nan_inf_filter)
        self._losses.over_ranks = self._several
        self._made_engine = self._new_engine()
        self.model.train()
        remove_hooks = setup.add_hooks(args, self.model)
        try:
            if self.state.max_steps > 0:
                self._has_trained = True
                self._made_engine.fit(self._adapter, self._engine_loader, ckpt_path=folder)
        finally:
            remove_hooks()
        return self._finish(started_s, samples)

    def _begin(self, resumed: dict[str, Any] | None) -> None:
        """The engine is about to train, all of a checkpoint taken: tells callbacks, and evaluates where asked."""
        engine = self._engine
        self._moves = self._own_prepare or engine.strategy.root_device.type != "cpu"
        plan = self._adapter._running("training").plan
        heard = plan.hooks.on_before_backward or plan.hooks.on_after_backward
        self._plain_backward = not heard and plan.backward is None and type(self.accelerator) is Accelerator
        progress = engine.progress
        set_epoch(self._engine_loader, progress.epoch)
        if resumed is not None:
            self._losses.load_state_dict(resumed["losses"])
            self._losses.count_from_here()
            self.control.should_epoch_stop = resumed["stop_epoch"]
            if resumed["stop_epoch"]:
                self._adapter.end_epoch()
            self.control.should_training_stop = resumed["stop"] and resumed["max_steps"] == self.state.max_steps
            for logger, position in zip(self.callback_handler.loggers, resumed.get("loggers", ()), strict=False):
                logger.go_on(position)
        if progress.step:
            setup.use_learning_rate(self, (resumed or {}).get("made_rates"))
        if switches(self.optimizer):
            self.optimizer.train()
        self._globalstep_last_logged, self._total_loss_scalar = self.state.global_step, 0.0
        self._tell_callbacks_of()
        self._tell("on_train_begin")
        if self.args.eval_on_start and progress.step == 0:
            self._evaluate(self._trial, self._ignore_keys_for_eval, skip_scheduler=True)
            self.model_wrapped.train()

    def _finish(self, started_s: float, all_samples: float) -> state.TrainOutput:
        """What follows the last step: the run's figures, the best model, the last event."""
        args, run = self.args, self.state
        done = run.global_step - self._steps_before
        mean = self._losses.mean()
        self._losses.take()
        if switches(self.optimizer):
            self.optimizer.eval()
        if args.load_best_model_at_end and run.best_model_checkpoint is not None:
            self._load_best_model()
        samples = all_samples * done / max(1, run.max_steps)
        figures = speed_metrics("train", started_s, samples, done)
        self.store_flos()
        figures["total_flos"] = run.total_flos
        figures["train_loss"] = mean
        figures |= self._memory.stop("train")
        figures = ranks.of_first(args, figures)
        self.is_in_train = False
        if self._evaluated_at == run.global_step:
            self.model_wrapped.eval()  # as the last evaluation left it
        self.log(figures)
        if args.should_save and args.save_strategy != "no":
            best = run.best_model_checkpoint if args.load_best_model_at_end else None
            rotate(self._get_output_dir(self._trial), args.save_total_limit, best, run.global_step, final=True)
        self._tell("on_train_end")
        self._finish_current_push()
        if args.push_to_hub:
            self.push_to_hub()
        return state.TrainOutput(run.global_step, mean, figures)

    # ------------------------------------------------------------------ one batch: the override points

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Forward and backward of one batch. An override owns its backward pass: `self.accelerator.backward(loss)`.

        Args:
            model: in train mode.
            inputs: the batch.
            num_items_in_batch: labels that count in the whole optimizer step, where somebody asks for it.

        Returns:
            The loss, detached, as it weighs in the step.
        """
        if not model.training:
            model.train()
        if self._moves:
            inputs = self._prepare_inputs(inputs)
        if self._plain_context and num_items_in_batch is None:
            loss = self.compute_loss(model, inputs)
        else:
            count: dict[str, Any] = {"num_items_in_batch": num_items_in_batch} if self._loss_takes_count else {}
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs, **count)
        if not isinstance(loss, Tensor):
            raise losses.no_loss(loss, self.compute_loss)
        weight = self._loss_weight
        if weight is not None:
            if self._uses_count is None:
                self._uses_count = isinstance(num_items_in_batch, losses.CountProbe) and num_items_in_batch.used
            if not self._uses_count:
                loss = loss * weight
            elif self._several:
                loss = loss * self._loss_scale
        if loss.dim() or not loss.requires_grad:
            loss = losses.one_loss(loss, self.model)
        self._weighed = weight is not None
        if self._plain_backward:
            loss.backward()
        else:
            self.accelerator.backward(loss)
        return loss.detach()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of one batch; with `return_outputs` also what the model returned.

        Raises:
            UserCodeError: the model returned no loss.
        """
        labels = None
        if (self.label_smoother is not None or self.compute_loss_func is not None) and "labels" in inputs:
            labels = inputs["labels"]
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        if num_items_in_batch is not None and self.model_accepts_loss_kwargs and labels is None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        if labels is not None and self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None:
            assert self.label_smoother is not None
            loss = self.label_smoother(outputs, labels, shift_labels=self._shifts_labels)
        else:
            loss = losses.loss_in(outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def _weigh(self, window: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """The batches of a step, and the labels in all of them where somebody asks; sets what each loss weighs."""
        window, count = ranks.weigh(self, window) if self._several else self._weigh_here(window)
        self.current_gradient_accumulation_steps = len(window)
        return window, count

    def _weigh_here(self, window: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        if self._own_samples:
            window, count = losses.call(self.get_batch_samples, iter(window), len(window), self.args.device)
        elif len(window) == 1 and not self._passes_count:
            self._loss_weights = None
            return window, None
        else:
            count = None
        weights, counted = losses.shares(window, self._shifts_labels)
        self._loss_weights = weights if len(window) > 1 and not self._uses_count else None
        if not self._passes_count:
            return window, count
        count = counted if count is None else count
        if self._loss_weights is not None and self._uses_count is None:
            if isinstance(count, Tensor) and not args_compile(self.args):
                count = losses.CountProbe.of(count)
            elif args_compile(self.args):  # a compiled model is believed
                self._uses_count, self._loss_weights = True, None
        return window, count

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The batches of the next step, and how many labels count in them."""
        found = []
        for _ in range(num_batches):
            try:
                found.append(next(epoch_iterator))
            except StopIteration:
                break
        return found, self._get_num_items_in_batch(found, device) if found else None

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """How many labels count in the batches of a step."""
        return losses.shares(batch_samples, self._shifts_labels)[1]

    def _prepare_inputs(self, inputs: Any) -> Any:
        """A batch on the model's device."""
        return self._prepare_input(inputs)

    def _prepare_input(self, data: Any) -> Any:
        """Any part of a batch on the model's device. An override is asked for each part by itself."""
        if self._own_input and isinstance(data, Mapping):
            return type(data)({name: self._prepare_input(part) for name, part in data.items()})  # type: ignore[call-arg]
        if self._own_input and type(data) in (list, tuple):
            return type(data)(self._prepare_input(part) for part in data)
        return self._engine.strategy.batch_to_device(data)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clips the gradients to max_grad_norm; returns the norm that they had. Called where that is more than 0."""
        adapter = self._adapter
        return adapter._running("clip").strategy.clip(adapter.in_model_order, self.args.max_grad_norm, "norm")

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """What a loss is computed in: the run's precision."""
        return self.autocast_smart_context_manager()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """The context of the run's precision."""
        return self.accelerator.autocast()


def args_compile(args: TrainingArguments) -> bool:
    """Whether the model is compiled."""
    return bool(args.torch_compile)


def set_seeds(args: TrainingArguments) -> None:
    """Seeds python, numpy and torch; turns on deterministic algorithms where that was asked."""
    if args.full_determinism:
        enable_full_determinism(args.seed)
    else:
        set_seed(args.seed)
