"""`sweep`: measure a disk and find the ``"aio"`` block for it, within a minute."""

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
from dsexplore._internal.aio.sweeps.measure import Bench, Mode
from dsexplore._internal.aio.sweeps.phases import RunningSweep, run_phases
from dsexplore._internal.aio.sweeps.references import why_no_reference
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
    """Find the setting that feeds tensors fastest from and to a disk.

    Args:
        path: a directory, where one scratch file is made and removed; or an existing file, which is only read. Several
            directories, on disks of their own, are measured together: process 0 uses the first, process 1 the second
            and so on, as DeepSpeed's ``--folder_to_device_mapping`` spreads ranks over mount points.
        size: bytes of the scratch file: ``"1GiB"``. At least 8 MiB.
        seconds: the time to spend, making the file included; None measures the full grid.
        read_share: the part of your traffic that is reads, 0 to 1.
        mode: ``"tensor"``: one large buffer, as DeepSpeed moves it; ``"ring"``: depth × block bytes, as fio.
        write_mode: ``"overwrite"`` (swap files), ``"fresh"`` or ``"fallocated"``; they differ by a factor of two.
        backend: ``"linux-aio"``, ``"io_uring"`` or ``"threads"``; None takes the first that runs here.
        direct: past the page cache; False measures memory as much as the disk, and is labeled so.
        references: ``"fio"`` and ``"deepspeed"``, run beside ours if they can.
        tensor: bytes of your tensors, one or several sizes, each moved to its end before the next begins; the setting
            to take has to do well at each. None: 32 MiB and 512 MiB.
        max_written: bytes that may be written in all; the sweep ends before it writes more. None: no limit.
        processes: how many move tensors at the same time, as the ranks of a job do, each on a file of ``size`` of its
            own, or all on the existing file. Rates count all together. At least one for each directory.
        memory: pages of the tensors: ``"ordinary"``, as DeepSpeed's handle and torch allocate them by default, or
            ``"huge"``, as `aio_handle.new_cpu_locked_tensor` of this package. What the other kind would change is
            measured at the end.
        progress: a bar (None: in a terminal or notebook, where someone sees it), or a function that takes a `Progress`.
        seed: of the data and of the order in which settings are measured.
        axes: values to try instead of the default ones: ``queue_depth=[4, 8]``.

    Returns:
        All measurements, with `SweepResult.best`. Ctrl-C ends the sweep early with the results so far.

    Raises:
        OSError: the path cannot be used, the disk fills, or a request fails; names errno and path.
        UsageError: an argument out of range.
    """
    folders = _folders(path)
    count = max(processes, len(folders)) if len(folders) > 1 and as_integer(processes) is not None else processes
    plan = Plan(size, seconds, read_share, mode, write_mode, tensor, max_written, axes, processes=count, memory=memory)
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
            places = [folders[number % len(folders)] for number in range(1, plan.processes)]
            workers = start_workers(stack, places, plan, engine, direct)
            bench = BenchTogether(setup.bench, workers)
        budget = Budget(setup, bench, time.monotonic, begun)
        measurer = RoundMeasurer(setup, bench, budget, report, random.Random(seed))
        conditions = replace(setup.conditions(unavailable), further_folders=tuple(folders[1:]))
        run = RunningSweep(setup, measurer, budget, report, conditions)
        result = run_phases(run, [name for name in references if name not in unavailable])
        report(Progress(1.0, "interrupted" if result.interrupted else "done"))
        return result


def _folders(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the paths to measure; several have to be directories.

    Raises:
        UsageError: none is given, one is empty or given twice, or one of several is not a directory.
    """
    folders = [os.fspath(folder) for folder in ([path] if isinstance(path, (str, os.PathLike)) else path)]
    if not folders or not all(folders):
        raise UsageError(f"path {path!r} is empty: give a directory on the disk to measure, or an existing file")
    for folder in folders if len(folders) > 1 else ():
        if not Path(folder).is_dir():
            raise UsageError(f"{folder} is not a directory: of several paths, each is a directory on a disk of its own")
    if len({os.path.realpath(folder) for folder in folders}) < len(folders):
        raise UsageError(f"of the paths {', '.join(folders)} two are one directory: give each once")
    return folders
