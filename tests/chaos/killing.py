"""Attempts at a world in processes of their own, and how they are ended.

`cold` starts a new interpreter; `forked` forks this one, which has torch loaded, and is ten times as quick. Both end
by SIGKILL where a kill is asked for, and both count what came of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from tests.chaos import worlds

LIMIT_S = 120.0
ROOT = Path(__file__).parents[2]


def cold(out: Path, options: dict[str, Any], kill_after_s: float | None = None) -> int:
    """One attempt in a new interpreter, killed so long after its first batch; returns the exit code (-9: killed)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    before = _size(out / "ledger.txt")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.worlds", str(out), json.dumps(options)],
            env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            if kill_after_s is not None:
                deadline_s = time.monotonic() + LIMIT_S
                while process.poll() is None and _size(out / "ledger.txt") == before and time.monotonic() < deadline_s:
                    time.sleep(0.002)
                time.sleep(kill_after_s)
                process.kill()
            process.wait(LIMIT_S)
        finally:
            # a loader's worker that was forked in the instant of a kill takes its new parent for its own, and stays
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        errors = log.read()
    assert process.returncode in (0, -signal.SIGKILL), errors[-3000:]
    return process.returncode


def forked(out: Path, options: dict[str, Any]) -> int:
    """One attempt in a fork of this process; returns the exit code (-9: killed)."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):  # whatever happens, the child ends here, and its code tells
            with open(out.parent / "errors.txt", "a") as log:
                os.dup2(log.fileno(), 2)
                try:
                    warnings.simplefilter("ignore")
                    worlds.run(str(out), options)
                    code = 0
                except BaseException:
                    import traceback

                    traceback.print_exc(file=log)
        os._exit(code)
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            errors = (out.parent / "errors.txt").read_text()[-3000:] if code not in (0, -9) else ""
            assert code in (0, -signal.SIGKILL), errors
            return code
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"an attempt did not end within {LIMIT_S} s")
        time.sleep(0.002)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def batches_done(out: Path) -> list[tuple[int, int]]:
    """The (epoch, batch) pairs in the ledger, in the order in which they were trained on."""
    lines = (out / "ledger.txt").read_text().splitlines() if (out / "ledger.txt").exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines if len(line.split()) == 4]
