"""Every environment variable that Bolide reads or sets, in one table.

No other module touches `os.environ`. Values are read when asked for, never at import.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """One environment variable: its meaning and the value that its absence stands for."""

    meaning: str
    default: str | None = None


VARIABLES: dict[str, Variable] = {
    "RANK": Variable("this process's number among all, set by the launcher"),
    "LOCAL_RANK": Variable("this process's number on its machine, set by the launcher"),
    "WORLD_SIZE": Variable("how many processes take part, set by the launcher"),
    "LOCAL_WORLD_SIZE": Variable("how many processes this machine has, set by the launcher"),
    "GROUP_RANK": Variable("this machine's number, set by torch's elastic agent"),
    "GROUP_WORLD_SIZE": Variable("how many machines take part, set by torch's elastic agent"),
    "NODE_RANK": Variable("this machine's number, set by who starts processes by hand"),
    "MASTER_ADDR": Variable("the host at which the first process meets the others"),
    "MASTER_PORT": Variable("the port at which the first process meets the others"),
    "TORCHELASTIC_RUN_ID": Variable("set in each process that torch's elastic agent started"),
    "TORCHELASTIC_RESTART_COUNT": Variable("how often the elastic agent has started this group again"),
    "TORCHELASTIC_ERROR_FILE": Variable("where a process leaves its error for the elastic agent"),
    "TORCHELASTIC_SIGNALS_TO_HANDLE": Variable("the signals that the elastic agent hands on"),
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": Variable(
        "1 gives each attempt a store of its own, without the addresses of the one before"
    ),
    "GLOO_SOCKET_IFNAME": Variable("the network interface of gloo, set to that by which the machines meet"),
    "OMP_NUM_THREADS": Variable("threads of each process, set to its share of the cores where it is not given"),
    "OMPI_COMM_WORLD_SIZE": Variable("how many processes take part, set by Open MPI"),
    "OMPI_COMM_WORLD_RANK": Variable("this process's number among all, set by Open MPI"),
    "PMI_SIZE": Variable("how many processes take part, set by MPICH and others"),
    "PMI_RANK": Variable("this process's number among all, set by MPICH and others"),
    "PMIX_RANK": Variable("this process's number among all, set by PMIx, on which Open MPI and others stand"),
    "JSM_NAMESPACE_SIZE": Variable("how many processes take part, set by LSF's jsrun"),
    "JSM_NAMESPACE_RANK": Variable("this process's number among all, set by LSF's jsrun"),
    "JSM_NAMESPACE_LOCAL_RANK": Variable("this process's number on its machine, set by LSF's jsrun"),
    "LSB_JOBID": Variable("the LSF job"),
    "LSB_DJOB_RANKFILE": Variable("a file with the hosts of the LSF job"),
    "SLURM_NODEID": Variable("this machine's number in the SLURM job"),
    "SLURM_JOB_NODELIST": Variable("the machines of the SLURM job"),
    "SLURM_NODELIST": Variable("the machines of the SLURM job, in older releases"),
    "SLURM_NTASKS_PER_NODE": Variable("how many tasks of the SLURM job a machine has"),
    "PYTEST_CURRENT_TEST": Variable("the test that runs: there is no script then that could be run again"),
    "BOLIDE_AGENT_PID": Variable("the process that started this rank, whose end ends it too"),
    "BOLIDE_STARTS": Variable("how often this machine's agent has started ranks before, for whatever reason", "0"),
    "BOLIDE_HEARTBEATS": Variable("the folder in which ranks leave word that they are alive"),
    "BOLIDE_ESTIMATE": Variable("numbers of devices, and their memory: a fit prints what it would take, and ends"),
    "BOLIDE_RAY_ATTEMPT": Variable("set in each worker of Ray's: how often Ray has started this group again"),
    "PL_TRAINER_DEFAULT_ROOT_DIR": Variable("where a Trainer writes that was given no default_root_dir"),
    "RAY_ADDRESS": Variable("the Ray cluster that is meant where no address is given"),
    "RAY_CHDIR_TO_TRIAL_DIR": Variable("0 leaves Ray Train's workers in the folder that they were started in"),
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": Variable("0, before Ray is imported: a Ray started here binds loopback only"),
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": Variable("0 has Ray Train not watch for machines that are taken away"),
    "RAY_TRAIN_ENABLE_PRINT_PATCH": Variable("0 has Ray Train's workers print each line once"),
    "RAY_USAGE_STATS_ENABLED": Variable("0 keeps Ray from reporting its use; set where it is not given"),
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": Variable("1 keeps Ray Tune from writing each report into three files"),
    "SLURM_PROCID": Variable("this process's number among all, set by SLURM"),
    "SLURM_LOCALID": Variable("this process's number on its machine, set by SLURM"),
    "SLURM_JOB_ID": Variable("the SLURM job, used as TensorBoard's version, and to put it back into the queue"),
    "SLURM_JOB_NAME": Variable("the SLURM job's name; that of a shell means that somebody sits before it"),
    "SLURM_NTASKS": Variable("how many tasks the SLURM job has"),
    "SLURM_ARRAY_JOB_ID": Variable("the SLURM array that the job is a task of"),
    "SLURM_ARRAY_TASK_ID": Variable("which task of a SLURM array the job is"),
    "PL_GLOBAL_SEED": Variable("the seed that `seed_everything` was last given"),
    "PL_SEED_WORKERS": Variable("1 when `seed_everything(..., workers=True)` was called", "0"),
    "CUBLAS_WORKSPACE_CONFIG": Variable("cuBLAS workspace, set for deterministic=True"),
    "POSSIBLE_USER_WARNINGS": Variable("'off' silences warnings about what may be a mistake", "on"),
    "BOLIDE_RUN_DIR": Variable("the folder of this run, handed to child processes"),
    "TENSORBOARD_LOGGING_DIR": Variable("where TensorBoard writes, for TrainingArguments without logging_dir"),
    "PL_DEEPSPEED_CONFIG_PATH": Variable("a JSON file with DeepSpeed's configuration, for strategies of DeepSpeed"),
    "DS_ACCELERATOR": Variable("the kind of device that DeepSpeed computes on, set where the Trainer's is the CPU"),
    "TORCH_EXTENSIONS_DIR": Variable("where torch keeps the extensions that it has compiled, DeepSpeed's among them"),
    "COLUMNS": Variable("width of the terminal in characters"),
}

TRAINER_PREFIX = "PL_TRAINER_"
"""`PL_TRAINER_MAX_EPOCHS=3` stands for `Trainer(max_epochs=3)` where the argument is not given."""


def get(name: str) -> str | None:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, VARIABLES[name].default)


def set(name: str, value: str) -> None:
    """Sets a variable of the table for this process and its children."""
    if name not in VARIABLES:
        raise KeyError(name)
    os.environ[name] = value


def unset(name: str) -> None:
    """Removes a variable of the table from this process and its children."""
    if name not in VARIABLES:
        raise KeyError(name)
    os.environ.pop(name, None)


@contextlib.contextmanager
def changed(values: dict[str, str]) -> Iterator[None]:
    """Within the block these variables of the table have these values; afterwards they are as they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                unset(name)
            else:
                set(name, old)


def trainer_arguments() -> dict[str, str]:
    """Trainer arguments given as `PL_TRAINER_<NAME>`, by lower-case argument name, as text."""
    size = len(TRAINER_PREFIX)
    return {key[size:].lower(): text for key, text in os.environ.items() if key.startswith(TRAINER_PREFIX)}


def rank() -> int:
    """This process's global rank as the launcher's environment tells it; 0 when nothing does."""
    names = (
        "RANK",
        "SLURM_PROCID",
        "JSM_NAMESPACE_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "LOCAL_RANK",
    )
    for name in names:
        text = os.environ.get(name)
        if text is not None and text.isdigit():
            return int(text)
    return 0
