"""The `bolide` command line: help, version, and wrong words."""

from __future__ import annotations

import pytest

from bolide.cli.main import main


def failing(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_version(capsys):
    import bolide

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"bolide {bolide.__version__} (torch ")


def test_no_command_prints_the_help(capsys):
    assert main([]) == 2
    assert "demo" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys):
    assert "there is no command 'dmeo'. Did you mean 'demo'? Commands: checkpoint, demo" in failing(capsys, "dmeo")


def test_an_unknown_command_far_from_any_lists_them(capsys):
    told = failing(capsys, "xyzzy")
    assert "there is no command 'xyzzy'. Commands: checkpoint, demo" in told and "--help" in told


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_epochs_must_be_a_number_of_at_least_one(capsys, value):
    assert "--epochs" in failing(capsys, "demo", f"--epochs={value}")


def test_an_unknown_option_is_refused(capsys):
    assert "--epoch" in failing(capsys, "demo", "--epoch", "3")
