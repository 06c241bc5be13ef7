"""The table of results that `validate` and `test` print."""

from __future__ import annotations

from bolide.core.text import printable


def results_table(results: list[dict[str, float]], stage: str) -> str:
    """The results of all loaders as text: a row a metric, a column a loader.

    Args:
        results: one dictionary a loader; a name's "/dataloader_idx_N" is told by the column.
        stage: "validate" or "test", for the header.
    """
    rows: dict[str, list[str]] = {}
    for i, found in enumerate(results):
        for name, value in found.items():
            plain = name.removesuffix(f"/dataloader_idx_{i}")
            rows.setdefault(printable(plain), [""] * len(results))[i] = f"{value:.6g}"
    if not rows:
        return ""
    several = len(results) > 1
    title = "Validate metric" if stage == "validate" else "Test metric"
    headers = [f"DataLoader {i}" if several else "value" for i in range(len(results))]
    width = max(len(title), *(len(name) for name in rows))
    widths = [max(len(headers[i]), *(len(row[i]) for row in rows.values())) for i in range(len(results))]
    lines = [title.ljust(width) + "".join("  " + h.rjust(w) for h, w in zip(headers, widths, strict=True))]
    line = "-" * len(lines[0])
    lines += [
        name.ljust(width) + "".join("  " + v.rjust(w) for v, w in zip(row, widths, strict=True))
        for name, row in rows.items()
    ]
    return "\n".join([line, lines[0], line, *lines[1:], line])
