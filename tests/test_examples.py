"""What the documents say holds: code that users copy runs, links lead somewhere, every switch has its row."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from bolide.core.config import Compat

ROOT = Path(__file__).resolve().parents[1]


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore")
def test_the_code_in_the_readme_learns_its_line(capfd):
    (code,) = python_blocks(ROOT / "README.md")
    names = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), names)
    net = names["model"].net
    assert net.weight.item() == pytest.approx(3, abs=0.05)
    assert net.bias.item() == pytest.approx(1, abs=0.05)


def test_the_readme_code_is_as_long_as_it_says():
    (code,) = python_blocks(ROOT / "README.md")
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 30


def test_links_in_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_compat_switch_has_its_row():
    rows = [line for line in (ROOT / "docs/differences.md").read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row.rsplit("|", 2)[1])}
    assert documented == {switch.name for switch in fields(Compat)}
