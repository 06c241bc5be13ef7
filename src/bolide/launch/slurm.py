"""SLURM: the job that this process runs in, and how it goes back into the queue.

Owns what SLURM's variables mean and the one call of `scontrol`. Who calls: the trainer asks whether a job is there and
which of its tasks this is, engine/signals puts it back into the queue once a checkpoint is committed.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess

from bolide.core import env
from bolide.core.errors import ConfigError
from bolide.core.messages import info, warn
from bolide.launch.environments import ClusterEnvironment, port_of_job

JOB_ID = re.compile(r"[0-9]{1,20}([_+][0-9]{1,10})?")
"""A job's number; with "_" that of one task of an array, with "+" that of one part of a heterogeneous job."""

INTERACTIVE_NAMES = ("bash", "interactive", "zsh", "sh")
"""Names of jobs in which somebody sits before a shell."""

SCONTROL_TIMEOUT_S = 60.0


class SLURMEnvironment(ClusterEnvironment):
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

    name = "SLURM"

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

    @property
    def creates_processes_externally(self) -> bool:
        """Whether `srun` started this process: within a bare batch script there is no task's number."""
        return env.get("SLURM_PROCID") is not None

    @property
    def main_address(self) -> str:
        """MASTER_ADDR where it is set, else the first host of the job."""
        given = env.get("MASTER_ADDR")
        return given or first_host(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or "127.0.0.1")

    @property
    def main_port(self) -> int:
        """MASTER_PORT where it is set, else a port that the job's number gives."""
        given = env.get("MASTER_PORT")
        return int(given) if given else port_of_job(env.get("SLURM_JOB_ID"))

    def world_size(self) -> int:
        """How many tasks the job has."""
        return int(env.get("SLURM_NTASKS") or 1)

    def global_rank(self) -> int:
        """This task's number."""
        return int(env.get("SLURM_PROCID") or 0)

    def local_rank(self) -> int:
        """This task's number on its machine."""
        return int(env.get("SLURM_LOCALID") or 0)

    def node_rank(self) -> int:
        """This machine's number."""
        return int(env.get("SLURM_NODEID") or 0)

    def local_world_size(self) -> int | None:
        """How many tasks a machine has, where the job asked for the same number on each."""
        text = (env.get("SLURM_NTASKS_PER_NODE") or "").partition("(")[0]
        return int(text) if text.isdigit() else None

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


def first_host(nodes: str) -> str:
    """The first host of SLURM's compact list: "gpu[07-09,12],cpu1" begins with "gpu07"."""
    head = nodes.strip()
    opened = head.find("[")
    comma = head.find(",")
    if opened < 0 or 0 <= comma < opened:
        return head.split(",")[0].strip()
    prefix, rest = head[:opened], head[opened + 1 :]
    inside, _, after = rest.partition("]")
    first = inside.split(",")[0].partition("-")[0]
    return prefix + first + after.split(",")[0].partition("[")[0]
