"""SLURM: the job that this process runs in, and how it goes back into the queue.

Owns what SLURM's variables mean and the one call of `scontrol`. Who calls: the trainer asks whether a job is there,
engine/signals puts it back into the queue once a checkpoint is committed.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.core.messages import info, warn

JOB_ID = re.compile(r"[0-9]{1,20}([_+][0-9]{1,10})?")
"""A job's number; with "_" that of one task of an array, with "+" that of one part of a heterogeneous job."""

INTERACTIVE_NAMES = ("bash", "interactive", "zsh", "sh")
"""Names of jobs in which somebody sits before a shell."""

SCONTROL_TIMEOUT_S = 60.0


class SLURMEnvironment:
    """A job of SLURM.

    SLURM tells a job some time before its limit, where the batch script says `#SBATCH --signal=SIGUSR1@90`. The
    trainer then saves at the next step boundary, puts the job back into the queue and ends; the job's next start goes
    on with `trainer.fit(..., ckpt_path="auto")`.

    Args:
        auto_requeue: whether the signal puts the job back into the queue.
        requeue_signal: the signal; default SIGUSR1.

    Raises:
        ConfigError: `requeue_signal` is no signal, or one that has another meaning for a run.

    Example::

        Trainer(plugins=[SLURMEnvironment(requeue_signal=signal.SIGUSR2)])
    """

    def __init__(self, auto_requeue: bool = True, requeue_signal: signal.Signals | int | None = None) -> None:
        signum = signal.SIGUSR1 if requeue_signal is None else requeue_signal
        try:
            known = signal.Signals(signum)
        except ValueError as error:
            raise ConfigError(
                f"SLURMEnvironment(requeue_signal={requeue_signal!r}) is no signal; write signal.SIGUSR1"
            ) from error
        if known in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise ConfigError(
                f"SLURMEnvironment(requeue_signal={known.name}): that signal has a meaning of its own; write "
                "signal.SIGUSR1 or signal.SIGUSR2, and the same in #SBATCH --signal"
            )
        self.auto_requeue = auto_requeue
        self.requeue_signal: int | None = int(known)

    @staticmethod
    def detect() -> bool:
        """Whether this process is a task of a SLURM job that nobody sits before."""
        return env.get("SLURM_NTASKS") is not None and env.get("SLURM_JOB_NAME") not in INTERACTIVE_NAMES

    @staticmethod
    def job_name() -> str | None:
        """The job's name, or None outside of SLURM."""
        return env.get("SLURM_JOB_NAME")

    @staticmethod
    def job_id() -> str | None:
        """The job's number as `scontrol` takes it, for a task of an array "array_task"; None outside of SLURM."""
        array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
        found = f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID")
        return found if found and JOB_ID.fullmatch(found) else None

    def requeue(self) -> bool:
        """Puts the job back into the queue; the first process only. Returns whether that was done.

        What goes wrong is a warning with the command to write: the checkpoint is there, and the run ends anyway.
        """
        if env.rank() != 0:
            return False
        job_id = self.job_id()
        if job_id is None:
            warn(
                f"SLURM_JOB_ID={env.get('SLURM_JOB_ID')!r} is no job's number, so the job was not put back into the "
                "queue. Write: scontrol requeue JOB"
            )
            return False
        program = shutil.which("scontrol")
        if program is None:
            warn(f"There is no scontrol on PATH, so job {job_id} stays out of the queue: scontrol requeue {job_id}")
            return False
        try:
            done = subprocess.run(
                [program, "requeue", job_id], capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            warn(f"Job {job_id} was not put back into the queue: {error}. Write: scontrol requeue {job_id}")
            return False
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[:300]
            warn(f"scontrol requeue {job_id} ended with exit code {done.returncode}: {said}")
            return False
        info(f"Job {job_id} is back in the queue.")
        return True
