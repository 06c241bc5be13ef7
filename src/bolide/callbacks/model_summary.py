"""ModelSummary: says at the start of a fit what the model consists of. The numbers come from bolide/summary.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bolide.callbacks.callback import Callback
from bolide.core.messages import info
from bolide.summary import ModelSummary as Summary
from bolide.summary import format_summary_table, summarize

if TYPE_CHECKING:
    from bolide.module import LightningModule
    from bolide.trainer.trainer import Trainer


class ModelSummary(Callback):
    """Prints a table of the model's layers when a fit starts.

    Args:
        max_depth: how deep the table goes: 1 the direct children, -1 all, 0 no table at all.
        summarize_kwargs: handed on to `summarize`.

    Example::

        Trainer(callbacks=[ModelSummary(max_depth=-1)]).fit(model)
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        super().__init__()
        self._max_depth = max_depth
        self._summarize_kwargs = summarize_kwargs

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the table, on the first process."""
        if not self._max_depth:
            return
        summary = self._summary(trainer, pl_module)
        if trainer.is_global_zero:
            self.summarize(
                summary._get_summary_data(),
                summary.total_parameters,
                summary.trainable_parameters,
                summary.model_size,
                summary.total_training_modes,
                total_flops=summary.total_flops,
                **self._summarize_kwargs,
            )

    def _summary(self, trainer: Trainer, pl_module: LightningModule) -> Summary:
        """The summary that is printed."""
        return summarize(pl_module, max_depth=self._max_depth)

    @staticmethod
    def summarize(
        summary_data: list[tuple[str, list[str]]],
        total_parameters: int,
        trainable_parameters: int,
        model_size: float,
        total_training_modes: dict[str, int],
        total_flops: int,
        **summarize_kwargs: Any,
    ) -> None:
        """Prints the columns `summary_data` and the totals; override it for another form."""
        table = format_summary_table(
            total_parameters, trainable_parameters, model_size, total_training_modes, total_flops, *summary_data
        )
        info("\n" + table)
