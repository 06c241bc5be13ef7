"""RichModelSummary: the model summary as a table of the package rich."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from bolide.callbacks.model_summary import ModelSummary
from bolide.core.errors import MissingPackageError
from bolide.summary import summary_totals


class RichModelSummary(ModelSummary):
    """Prints a table of the model's layers with rich when a fit starts.

    Args:
        max_depth: how deep the table goes: 1 the direct children, -1 all, 0 no table at all.
        summarize_kwargs: `header_style` (default "bold"), handed on to `rich.table.Table`.

    Raises:
        MissingPackageError: rich is not installed.
    """

    def __init__(self, max_depth: int = 1, **summarize_kwargs: Any) -> None:
        if find_spec("rich") is None:
            raise MissingPackageError("RichModelSummary", "rich", "rich")
        super().__init__(max_depth, **summarize_kwargs)

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
        """Prints the columns `summary_data` and the totals."""
        from rich import get_console
        from rich.table import Table

        table = Table(header_style=summarize_kwargs.get("header_style", "bold"))
        styles = {" ": "dim", "Name": "bold"}
        for head, _ in summary_data:
            right = head not in (" ", "Name", "Type", "Mode")
            table.add_column(head, style=styles.get(head), justify="right" if right else "left", no_wrap=head == "Name")
        for row in zip(*(cells for _, cells in summary_data), strict=True):
            table.add_row(*row)
        console = get_console()
        console.print(table)
        for text, value in summary_totals(
            total_parameters, trainable_parameters, model_size, total_training_modes, total_flops
        ):
            console.print(f"[bold]{text}[/]: {value.strip()}")
