"""The reason why a recorded block ended on a rank, and the attempt of the job that a saved file belongs to.

A launcher restarts a job if a rank fails, and each attempt saves into the same folder. Files of an earlier attempt must
not be taken for those of the latest. So each rank removes its earlier file when its block begins. Each file also names
its attempt, because a rank that never began cannot remove its earlier file.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch.distributed as dist

from dsexplore._internal.capture.collectives.groups import launched_rank
from dsexplore._internal.capture.stack.source_lines import file_name
from dsexplore._internal.torch_internals.process_groups import default_store
from dsexplore._internal.trace.call_journal import journal_file
from dsexplore._internal.trace.ends import ENDED_BLOCK, interrupted, raised, stopped_by_exit
from dsexplore._internal.trace.files import names_directory, rank_file, stack_file
from dsexplore._internal.user_code import is_user_file

_LAUNCHER = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables by which launchers tell attempts of jobs apart."""
_KEY = "dsexplore/attempt"
"""Key of the attempt's name in the store of the default process group."""
_blocks: Counter[str] = Counter()
"""{folder: number of blocks of this process that were to be saved there}."""


def end_of(error: BaseException | None) -> str:
    """Return the reason a block ended, in the form of `TraceInfo.ends`.

    Args:
        error: the exception that ended it; None if it completed.
    """
    if error is None:
        return ENDED_BLOCK
    line = _innermost_line(error.__traceback__)
    if isinstance(error, SystemExit):
        return stopped_by_exit(error.code, line)
    if isinstance(error, KeyboardInterrupt):
        return interrupted(line)
    return raised(type(error).__name__, str(error), line)


def _innermost_line(trace: TracebackType | None) -> str:
    """Return the innermost line of the user's program in a traceback, ``"train.py:5"``; empty if there is none."""
    line = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user_file(code.co_filename):
            line = f"{file_name(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def begin_saving(save: str | os.PathLike[str]) -> str:
    """Remove this rank's file of an earlier attempt, and return the name of this attempt.

    Args:
        save: the directory or file that the block will be saved to.

    Returns:
        A name that all ranks share in this block of this attempt, and in no other.
    """
    folder = str(Path(save).absolute())
    _blocks[folder] += 1
    if names_directory(save):
        rank = launched_rank()
        for name in (rank_file(rank), stack_file(rank), journal_file(rank)):
            (Path(save) / name).unlink(missing_ok=True)
    return f"{_job()} {_blocks[folder]}"


def _job() -> str:
    """Return a name that the ranks of one attempt of a job share: from its store, else from its launcher."""
    if dist.is_initialized():
        with suppress(Exception):  # a store without compare_set, or a backend without a store
            return str(default_store().compare_set(_KEY, "", uuid.uuid4().hex).decode())
    return " ".join(os.environ.get(name, "") for name in _LAUNCHER)
