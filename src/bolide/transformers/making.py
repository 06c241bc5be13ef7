"""The part of the trainer that makes loaders, optimizers and schedulers; each method may be overridden.

Who calls: trainer.py and the adapter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset, RandomSampler, Sampler, SequentialSampler

from bolide.core.errors import ConfigError, UserCodeError
from bolide.core.messages import warn_once
from bolide.transformers import data, optimizers, ranks, schedules
from bolide.transformers.loss import base_of, call
from bolide.transformers.weights import unwrapped


class Making:
    """Loaders, optimizers, schedulers: the trainer's methods for them."""

    args: Any
    model: Any
    state: Any
    train_dataset: Any
    eval_dataset: Any
    data_collator: Any
    label_names: list[str]
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: Any
    _optimizer_is_users = False
    _steps_scheduler = True
    _made_optimizer: Any = None
    _made_scheduler: Any = None
    _made_rates: Sequence[float] = ()
    _signature_columns: list[str] | None = None

    # ------------------------------------------------------------------ loaders

    def get_train_dataloader(self) -> Any:
        """The loader of training batches."""
        if self.train_dataset is None:
            raise ConfigError("train() needs train_dataset; write Trainer(train_dataset=...)")
        return self._get_dataloader(
            dataset=self.train_dataset, description="Training", batch_size=self.args.train_batch_size,
            sampler_fn=self._get_train_sampler, is_training=True,
        )  # fmt: skip

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of an evaluation: of the given dataset, the named one of several, or the trainer's."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if dataset is None:
            raise ConfigError("evaluate() needs eval_dataset; write Trainer(eval_dataset=...)")
        return self._get_dataloader(
            dataset=dataset, description="Evaluation", batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )  # fmt: skip

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The loader of a prediction."""
        return self._get_dataloader(
            dataset=test_dataset, description="test", batch_size=self.args.eval_batch_size,
            sampler_fn=self._get_eval_sampler,
        )  # fmt: skip

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[..., Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        """The loader of a dataset, which all three kinds come from.

        Args:
            dataset: map-style or iterable.
            description: what it is for, in a word.
            batch_size: samples of a batch.
            sampler_fn: (dataset) -> the order of its samples; not asked for an iterable one.
            is_training: whether it is trained on.
            dataloader_key: not read: each pass has a loader of its own.
        """
        args = self.args
        batch_size = ranks.size_here(args, batch_size)
        collate = self.data_collator
        if isinstance(getattr(dataset, "column_names", None), list) and callable(
            getattr(dataset, "remove_columns", None)
        ):
            dataset = self._remove_unused_columns(dataset, description)
        else:
            collate = self._get_collator_with_removed_columns(collate, description)
        options: dict[str, Any] = {
            "batch_size": batch_size, "collate_fn": collate, "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
            "persistent_workers": args.dataloader_persistent_workers,
        }  # fmt: skip
        if _is_iterable(dataset):
            if is_training and args.train_sampling_strategy != "random":
                warn_once(
                    f"train_sampling_strategy={str(args.train_sampling_strategy)!r} has no effect on "
                    f"{type(dataset).__name__}, which gives its samples in its own order."
                )
        else:
            sampler: Any = call(sampler_fn, dataset) if sampler_fn is not None else None
            if isinstance(sampler, data.BalancedBatches):
                del options["batch_size"]
                options["batch_sampler"] = sampler
            else:
                options |= {"sampler": sampler, "drop_last": args.dataloader_drop_last}
        if args.dataloader_num_workers:
            options["worker_init_fn"] = data.seed_worker if is_training else None
            options["prefetch_factor"] = args.dataloader_prefetch_factor
            options["multiprocessing_context"] = args.dataloader_multiprocessing_context
        return ranks.over_ranks(data.Loader(dataset, **options), args, is_training)

    def _set_signature_columns_if_needed(self) -> None:
        """Finds what of a sample is kept: what the model's forward takes, labels under all their names.

        An override sets `_signature_columns` itself.
        """
        if self._signature_columns is None:
            names = list(inspect.signature(base_of(self.model).forward).parameters)
            self._signature_columns = list(dict.fromkeys([*names, "label", "label_ids", *self.label_names]))

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        """A dataset with columns, without those that the model does not take."""
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        dropped = [column for column in dataset.column_names if column not in (self._signature_columns or ())]
        data.tell_dropped(dataset.column_names, self._signature_columns or (), type(base_of(self.model)).__name__)
        return dataset.remove_columns(dropped) if dropped else dataset

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        """A collator that leaves out of each sample what the model does not take."""
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return data.WithoutColumns(data_collator, self._signature_columns or (), type(base_of(self.model)).__name__)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        """The order of the training samples."""
        dataset = train_dataset if train_dataset is not None else self.train_dataset
        if dataset is None or _is_iterable(dataset):
            return None
        args = self.args
        seed = args.data_seed if args.data_seed is not None else args.seed
        if args.train_sampling_strategy in ("group_by_length", "batch_rebalance"):
            main = getattr(base_of(self.model), "main_input_name", None) or "input_ids"
            lengths, samples = (
                data.lengths_of(dataset, args.length_column_name, main), self.get_total_train_batch_size(args)
            )  # fmt: skip
            if args.train_sampling_strategy == "group_by_length":
                return data.LengthGroupedSampler(samples, lengths)
            return data.BalancedBatches(lengths, samples, args.gradient_accumulation_steps * args.world_size, seed)
        if args.train_sampling_strategy == "sequential":
            return SequentialSampler(dataset)
        if not args.accelerator_config.use_seedable_sampler:
            return RandomSampler(dataset)
        return data.EpochSampler(len(dataset), seed)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int] | None:
        """The order of the samples of an evaluation."""
        return SequentialSampler(eval_dataset)

    def get_tp_size(self) -> int:
        """Processes that share each tensor: no model is split so."""
        return 1

    get_cp_size = get_sp_size = get_tp_size

    def num_examples(self, dataloader: Any) -> int:
        """How many samples a loader has."""
        dataset = getattr(dataloader, "dataset", None)
        if dataset is not None and hasattr(type(dataset), "__len__"):
            return len(dataset)
        return len(dataloader) * int(getattr(dataloader, "batch_size", None) or self.args.train_batch_size)

    def get_total_train_batch_size(self, args: Any = None) -> int:
        """Samples of one optimizer step."""
        args = args if args is not None else self.args
        size = ranks.size_here(args, args.train_batch_size)
        return int(size * args.gradient_accumulation_steps * args.world_size)

    # ------------------------------------------------------------------ optimizers

    def _ready_to_step(self, num_training_steps: int) -> None:
        """Has both made, by whatever a subclass overrides, and notes what is to be known of them.

        Raises:
            UserCodeError: an override made none.
        """
        self._optimizer_is_users = self.optimizer is not None
        self.create_optimizer_and_scheduler(num_training_steps)
        self._refuse_without("optimizer", "lr_scheduler")
        self._steps_scheduler = not isinstance(self.lr_scheduler, ReduceLROnPlateau)
        own = isinstance(self.lr_scheduler, schedules.Schedule)
        self._made_rates = [float(rate) for rate in self.lr_scheduler.base_lrs] if own else ()
        if not self._optimizer_is_users:
            self._made_optimizer = self.optimizer
        self._tell_callbacks_of()  # type: ignore[attr-defined]

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Makes both, where they were not given."""
        call(self.create_optimizer, self.model)
        self._refuse_without("optimizer")
        call(self.create_scheduler, num_training_steps, self.optimizer)

    def _refuse_without(self, *names: str) -> None:
        missing = [name for name in names if getattr(self, name, None) is None]
        if missing:
            raise UserCodeError(
                f"{type(self).__name__} has made no {' and no '.join(missing)}; set self.{' and self.'.join(missing)} "
                "in create_optimizer_and_scheduler, or in create_optimizer and create_scheduler"
            )

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        """The optimizer of the arguments, over the parameters that decay and those that do not."""
        model = unwrapped(model if model is not None else self.model)
        if self.optimizer is None:
            if self.optimizer_cls_and_kwargs is not None:
                kind, options = self.optimizer_cls_and_kwargs
                if not isinstance(kind, type):  # a factory builds the optimizer of the model
                    self.optimizer = kind(model, **options)
                    return self.optimizer
            else:
                kind, options = self.get_optimizer_cls_and_kwargs(self.args, model)
            decay = self.get_decay_parameter_names(model)
            joins = not self.args.deepspeed  # it puts flat tensors into the groups
            self.optimizer = optimizers.build(kind, options, model, decay, self.args.weight_decay, joins)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule of the arguments."""
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        used = optimizer if optimizer is not None else self.optimizer
        if self.args.deepspeed:
            from bolide.transformers import zero

            self.lr_scheduler = zero.scheduler_of(self.args, used, num_training_steps)
        if self.lr_scheduler is None:
            self.lr_scheduler = schedules.get_scheduler(
                self.args.lr_scheduler_type,
                used,
                self.args.get_warmup_steps(num_training_steps),
                num_training_steps,
                dict(self.args.lr_scheduler_kwargs or {}),
            )
        self._made_scheduler = self.lr_scheduler
        return self.lr_scheduler

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """The parameters that weight decay applies to."""
        return optimizers.decaying(model)

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: nn.Module | None = None) -> tuple[Any, dict[str, Any]]:
        """The optimizer's class and its arguments."""
        if args.deepspeed:
            from bolide.transformers import zero

            return zero.optimizer_of(args) or optimizers.optimizer_class(args)
        return optimizers.optimizer_class(args)

    def get_learning_rates(self) -> list[float]:
        """The rate of each group of parameters."""
        if self.optimizer is None:
            raise ConfigError("There is no optimizer yet; call train() or create_optimizer() first")
        return [float(group["lr"]) for group in self.optimizer.state_dict()["param_groups"]]

    def get_num_trainable_parameters(self) -> int:
        """How many parameters train."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    def get_optimizer_group(self, param: Any = None) -> Any:
        """The group of a parameter, or all groups."""
        if self.optimizer is None:
            raise ConfigError("There is no optimizer yet; call train() or create_optimizer() first")
        if param is None:
            return [group["params"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            if any(param is p for p in group["params"]):
                return group
        return None


def _is_iterable(dataset: Any) -> bool:
    """Whether a dataset is read from its beginning only."""
    return isinstance(dataset, IterableDataset) or not hasattr(type(dataset), "__getitem__")
