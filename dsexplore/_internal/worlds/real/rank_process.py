"""The program of a newly forked rank: it sets up the process, and runs the program or the cells of its job."""

from __future__ import annotations

import ast
import faulthandler
import linecache
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as td

from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.user_code import RANK_CELL
from dsexplore._internal.worlds.real.cell_process import serve_cells
from dsexplore._internal.worlds.real.messages import LENGTH, RankJob, Report


def become_rank(job: RankJob, output: int, channel: int, stack: int) -> NoReturn:
    """Run the program or the cells in this process, report how they ended, and never return.

    A rank whose program succeeded stays until all ranks have ended, because its peers would take closed sockets for a
    failure. A rank whose program failed exits at once, so that peers in a collective with it fail too.

    Args:
        job: program of the rank, and the state of its process.
        output: descriptor for the rank's stdout and stderr.
        channel: descriptor of the rank's end of a socket to the launcher.
        stack: descriptor of the file for the rank's stack, written on SIGUSR1.
    """
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process's own stdout
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - and stderr
        with socket.socket(fileno=channel) as launcher:
            if job.program:
                _run_and_report(job, launcher)
            else:
                serve_cells(launcher, job, _prepare)
                os._exit(0)
    finally:
        os._exit(2)


def _run_and_report(job: RankJob, launcher: socket.socket) -> NoReturn:
    """Run the program of a job, send the report, and end the process; see `become_rank` for when."""
    report, data = _pack_report(_run_program(job))
    sys.stdout.flush()
    sys.stderr.flush()
    launcher.sendall(LENGTH.pack(len(data)) + data)
    if report.ok:
        launcher.recv(1)
    os._exit(0 if report.ok else 1)


def _prepare(job: RankJob) -> None:
    """Give this process the launcher's environment, directory and path, and open its process group."""
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.directory)
    sys.path[:] = job.path
    torch.set_num_threads(int(job.environment.get("OMP_NUM_THREADS", "1")))
    # The process that this one was forked from has read TORCH_DISTRIBUTED_DEBUG.
    td.set_debug_level_from_env()  # type: ignore[attr-defined] # public, and missing in __all__
    if job.backend is not None:
        if "nccl" in job.backend:
            torch.cuda.set_device(int(job.environment["LOCAL_RANK"]))
        td.init_process_group(job.backend, timeout=timedelta(seconds=job.group_timeout))


def _pack_report(report: Report) -> tuple[Report, bytes]:
    """Return the report and its bytes; if its value cannot be pickled, a report of that error."""
    reason = ""
    for pickler in (pickle.dumps, _cloudpickled):
        try:
            return report, pickler(report)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
    name = type(report.value).__name__
    problem = f"TypeError: the program returned a {name}, which cannot be sent back ({reason}): return plain data"
    report = Report(ok=False, error=problem, at=time.monotonic())
    return report, pickle.dumps(report)


def _cloudpickled(report: Report) -> bytes:
    import cloudpickle  # an optional dependency, which few programs need

    data: bytes = cloudpickle.dumps(report)
    return data


def _run_program(job: RankJob) -> Report:
    """Run the program of a job, and return the report on its value or its error."""
    try:
        in_use().keep_kernels(keep=False)  # the program may record nothing
        _prepare(job)
        program, extra = pickle.loads(job.program)
        if isinstance(program, str):
            namespace = {"__name__": "__main__", "rank": job.rank, "world_size": job.world_size, **extra}
            return Report(ok=True, value=run_source(program, namespace))
        return Report(ok=True, value=program(*extra))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the program are its failures too
        text = "".join(traceback.format_exception(error))
        return Report(ok=False, error=f"{type(error).__name__}: {error}", traceback=text, at=time.monotonic())


def run_source(source: str, namespace: dict[str, Any]) -> str:
    """Execute source text, and return the ``repr`` of its last expression; "" if it ends with a statement.

    Tracebacks show the file name `RANK_CELL`, and the lines of the text.
    """
    linecache.cache[RANK_CELL] = (len(source), None, source.splitlines(keepends=True), RANK_CELL)
    tree = ast.parse(source, RANK_CELL)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, RANK_CELL, "exec"), namespace)
    if not isinstance(last, ast.Expr):
        return ""
    return repr(eval(compile(ast.Expression(last.value), RANK_CELL, "eval"), namespace))
