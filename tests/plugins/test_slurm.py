from __future__ import annotations

import os
import signal

import pytest

from bolide.core.errors import ConfigError
from bolide.plugins.environments import SLURMEnvironment

NAMES = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_NTASKS", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_PROCID")


@pytest.fixture
def job(monkeypatch):
    for name in (*NAMES, "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)

    def given(**values):
        for name, value in values.items():
            monkeypatch.setenv(f"SLURM_{name}", value)

    return given


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A program of that name, which writes down what it is asked; returns the file and a way to let it fail."""
    asked = tmp_path / "asked"
    program = tmp_path / "scontrol"

    def make(code=0):
        program.write_text(f'#!/bin/sh\necho "$#:$@" >> {asked}\necho "no such job" >&2\nexit {code}\n')
        program.chmod(0o755)

    make()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return asked, make


def test_the_settings():
    environment = SLURMEnvironment()
    assert environment.auto_requeue and environment.requeue_signal == signal.SIGUSR1
    assert SLURMEnvironment(False, signal.SIGUSR2).requeue_signal == signal.SIGUSR2
    for wrong in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, 4711):
        with pytest.raises(ConfigError, match="requeue_signal"):
            SLURMEnvironment(requeue_signal=wrong)


def test_it_is_detected(job):
    assert not SLURMEnvironment.detect()
    job(NTASKS="1", JOB_NAME="train")
    assert SLURMEnvironment.detect() and SLURMEnvironment.job_name() == "train"
    job(JOB_NAME="bash")
    assert not SLURMEnvironment.detect()


def test_a_job_goes_back(job, scontrol):
    job(JOB_ID="123")
    assert SLURMEnvironment().requeue()
    assert scontrol[0].read_text() == "2:requeue 123\n"


def test_a_task_of_an_array_goes_back_alone(job, scontrol):
    job(JOB_ID="130", ARRAY_JOB_ID="123", ARRAY_TASK_ID="7")
    assert SLURMEnvironment().requeue()
    assert scontrol[0].read_text() == "2:requeue 123_7\n"


@pytest.mark.parametrize("text", ["", "12; rm -rf x", "$(x)", "-h", "1 2", "all", "9" * 40])
def test_what_is_no_job(job, scontrol, text):
    job(JOB_ID=text)
    with pytest.warns(UserWarning, match="is no job's number"):
        assert not SLURMEnvironment().requeue()
    assert not scontrol[0].exists()


def test_a_refusal_is_told(job, scontrol):
    job(JOB_ID="123")
    scontrol[1](code=1)
    with pytest.warns(UserWarning, match="exit code 1: no such job"):
        assert not SLURMEnvironment().requeue()


def test_without_the_program(job, monkeypatch, tmp_path):
    job(JOB_ID="123")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match="scontrol requeue 123"):
        assert not SLURMEnvironment().requeue()


def test_the_first_process_alone_asks(job, scontrol):
    job(JOB_ID="123", PROCID="1")
    assert not SLURMEnvironment().requeue()
    assert not scontrol[0].exists()


def test_a_trainer_takes_it():
    import bolide as pl

    environment = SLURMEnvironment()
    trainer = pl.Trainer(plugins=[environment], logger=False, enable_checkpointing=False, max_epochs=1)
    assert trainer.queue is environment
