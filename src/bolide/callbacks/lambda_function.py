"""LambdaCallback: a callback from plain functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bolide.callbacks.callback import Callback

Hook = Callable[..., Any]


class LambdaCallback(Callback):
    """A callback whose hooks are the given functions; each is called with the hook's arguments.

    Example::

        LambdaCallback(on_train_epoch_end=lambda trainer, module: print(trainer.current_epoch))
    """

    def __init__(
        self,
        setup: Hook | None = None,
        teardown: Hook | None = None,
        on_fit_start: Hook | None = None,
        on_fit_end: Hook | None = None,
        on_sanity_check_start: Hook | None = None,
        on_sanity_check_end: Hook | None = None,
        on_train_batch_start: Hook | None = None,
        on_train_batch_end: Hook | None = None,
        on_train_epoch_start: Hook | None = None,
        on_train_epoch_end: Hook | None = None,
        on_validation_epoch_start: Hook | None = None,
        on_validation_epoch_end: Hook | None = None,
        on_test_epoch_start: Hook | None = None,
        on_test_epoch_end: Hook | None = None,
        on_validation_batch_start: Hook | None = None,
        on_validation_batch_end: Hook | None = None,
        on_test_batch_start: Hook | None = None,
        on_test_batch_end: Hook | None = None,
        on_train_start: Hook | None = None,
        on_train_end: Hook | None = None,
        on_validation_start: Hook | None = None,
        on_validation_end: Hook | None = None,
        on_test_start: Hook | None = None,
        on_test_end: Hook | None = None,
        on_exception: Hook | None = None,
        on_save_checkpoint: Hook | None = None,
        on_load_checkpoint: Hook | None = None,
        on_before_backward: Hook | None = None,
        on_after_backward: Hook | None = None,
        on_before_optimizer_step: Hook | None = None,
        on_before_zero_grad: Hook | None = None,
        on_predict_start: Hook | None = None,
        on_predict_end: Hook | None = None,
        on_predict_batch_start: Hook | None = None,
        on_predict_batch_end: Hook | None = None,
        on_predict_epoch_start: Hook | None = None,
        on_predict_epoch_end: Hook | None = None,
    ) -> None:
        given = {name: fn for name, fn in locals().items() if name not in ("self", "__class__") and fn is not None}
        super().__init__()
        # kept on the instance: that is what makes the hook overridden, so the others cost nothing
        self.__dict__.update(given)
