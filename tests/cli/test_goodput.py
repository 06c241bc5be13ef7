import pytest

from bolide.cli.goodput import run_goodput
from bolide.core.errors import MisconfigurationException
from bolide.monitor import ledger


def test_the_tables_of_a_folder(tmp_path, capsys):
    for i, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        one = ledger.Attempt("x", 1000.0, 1010.0, 0, 7 + i, "success", {"training": 8.0, "startup": 2.0})
        ledger.append(str(tmp_path / name / "goodput.jsonl"), ledger.line_of(one))
    assert run_goodput(str(tmp_path / "a")) == 0
    out = capsys.readouterr().out
    assert out.startswith("Where the time went") and "attempt 1: success, 10.0 s, 7 batches" in out and "80.0 %" in out
    assert run_goodput(str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert str(tmp_path / "a/goodput.jsonl") in out and "8 batches" in out


def test_a_folder_without_one(tmp_path):
    with pytest.raises(MisconfigurationException, match="GoodputMonitor"):
        run_goodput(str(tmp_path))
