"""`sweep`: measure a disk, and find the ``"aio"`` block for it within a minute."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsexplore._internal.aio.aio_config import as_integer
from dsexplore._internal.aio.backends.choose import ENGINES, choose, why_not
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.bench_processes import BenchTogether, start_workers
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import why_no_reference
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Mode
from dsexplore._internal.aio.sweeps.phases import RunningSweep, run_phases
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.round_measurer import Budget, RoundMeasurer
from dsexplore._internal.aio.sweeps.sweep_setup import Plan, Progress, Report, Setup, WriteMode, reporting
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments, with_options


@names_arguments
@with_options(search.AXES)
def sweep(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    size: int | str = "1GiB",
    seconds: float | None = 60,
    *,
    read_share: float = 0.5,
    mode: Mode = "tensor",
    write_mode: WriteMode = "overwrite",
    backend: str | None = None,
    direct: bool = True,
    references: str | Sequence[str] = (),
    tensor: int | str | Sequence[int | str] | None = None,
    max_written: int | str | None = "64GiB",
    processes: int = 1,
    memory: str = "ordinary",
    progress: bool | Report | None = None,
    seed: int = 0,
    **axes: Sequence[Any],
) -> SweepResult:
    """Find the setting that moves tensors fastest from and to a disk.

    Args:
        path: a directory, where a scratch file is created and removed; or an existing file, which is only read. Several
            directories, each on another disk, are measured together: process 0 uses the first, process 1 the second
            and so on, as DeepSpeed's ``--folder_to_device_mapping`` distributes ranks over mount points.
        size: bytes of the scratch file, such as ``"1GiB"``; at least 8 MiB.
        seconds: time to spend, including the time to create the file; None to measure the full grid.
        read_share: fraction of your traffic that is reads, 0 to 1.
        mode: ``"tensor"`` for a large buffer, as with DeepSpeed; ``"ring"`` for depth × block bytes, as with fio.
        write_mode: ``"overwrite"`` (as with swap files), ``"fresh"`` or ``"fallocated"``; their rates differ by up to
            a factor of two.
        backend: ``"linux-aio"``, ``"io_uring"`` or ``"threads"``; None for the first that runs here.
        direct: bypass the page cache; False measures memory as much as the disk, and is labeled so.
        references: other programs to run, ``"fio"`` and ``"deepspeed"``; those that cannot run are omitted.
        tensor: bytes of your tensors, one size or several; each tensor is moved to its end before the next begins, and
            the recommended setting must be good at each size. None for 32 MiB and 512 MiB.
        max_written: bytes that may be written; the sweep ends before it writes more. None for no limit.
        processes: number of processes that move tensors at the same time, as the ranks of a job do, each on a file of
            its own, or all on the existing file; at least one per directory. Rates are those of all processes together.
        memory: pages of the tensors: ``"ordinary"``, as DeepSpeed's handle and torch allocate them by default, or
            ``"huge"``, as `aio_handle.new_cpu_locked_tensor` does. The gain of the other kind is measured at the end.
        progress: True for a progress bar, False for none, None for a bar if someone sees it, or a function that is
            called with a `Progress`.
        seed: seed of the data, and of the order in which settings are measured.
        axes: values to try instead of the default ones: ``queue_depth=[4, 8]``.

    Returns:
        All measurements; `SweepResult.best` has the recommended setting. After Ctrl-C, the results so far.

    Raises:
        OSError: the path cannot be used, the disk is full, or a request failed; the error has errno and path.
        UsageError: an argument is out of range.
    """
    folders = _folders(path)
    if len(folders) > 1 and as_integer(processes) is not None:
        processes = max(processes, len(folders))
    plan = Plan(
        size=size,
        seconds=seconds,
        read_share=read_share,
        mode=mode,
        write_mode=write_mode,
        tensor=tensor,
        max_written=max_written,
        axes=axes,
        processes=processes,
        memory=memory,
    )
    references = [references] if isinstance(references, str) else [*dict.fromkeys(references)]
    unavailable = {name: reason for name in references if (reason := why_no_reference(name)) is not None}
    engine = choose(backend)
    unavailable |= {name: reason for name in ENGINES if (reason := why_not(name)) is not None}
    begun = time.monotonic()
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress))
        setup = Setup(stack, path=folders[0], plan=plan, engine=engine, direct=direct, seed=seed, report=report)
        bench: Bench | BenchTogether = setup.bench
        if plan.processes > 1:
            worker_folders = [folders[number % len(folders)] for number in range(1, plan.processes)]
            workers = start_workers(stack, worker_folders, plan, engine=engine, direct=direct)
            bench = BenchTogether(setup.bench, workers)
        budget = Budget(setup, bench, clock=time.monotonic, begun=begun)
        measurer = RoundMeasurer(setup, bench, budget, report=report, shuffle=random.Random(seed))
        conditions = replace(setup.conditions(unavailable), further_folders=tuple(folders[1:]))
        run = RunningSweep(setup, measurer, budget, report=report, conditions=conditions)
        result = run_phases(run, [name for name in references if name not in unavailable])
        report(Progress(1.0, "interrupted" if result.interrupted else "done"))
        return result


def _folders(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the paths to measure; if there are several, they are directories.

    Raises:
        UsageError: there is no path, a path is empty, one of several is not a directory, or two are the same directory.
    """
    folders = [os.fspath(folder) for folder in ([path] if isinstance(path, (str, os.PathLike)) else path)]
    if not folders or not all(folders):
        raise UsageError(f"path {path!r} is empty: give a directory on the disk to measure, or an existing file")
    for folder in folders:
        if len(folders) > 1 and not Path(folder).is_dir():
            raise UsageError(f"{folder} is not a directory: of several paths, each is a directory on a disk of its own")
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise UsageError(f"of the paths {', '.join(folders)} two are one directory: give each once")
    return folders
