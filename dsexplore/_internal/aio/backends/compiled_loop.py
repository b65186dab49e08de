"""The loop of flow.c, which is compiled on first use by this machine's C compiler, and cached for the user.

Between a completion and the next submission the processor's caches are cold, and the Python interpreter takes some
30 µs per request to refill them. The same steps in C avoid that, and other threads can hold the interpreter's lock.

If the library cannot be compiled, the loops in Python run instead; `why_not` returns the reason. Reads of 128 KiB with
linux-aio from a virtual disk of 3 GB/s in ring mode, relative to fio (``benchmarks/aio_vs_fio.py``):

===============  ===========  ==========  =============  ============
depth × threads  rate, in C   in Python   CPU time in C  in Python
===============  ===========  ==========  =============  ============
1 × 1            1.03         0.71        1.09           2.79
1 × 2            1.10         0.64        0.93           4.14
8 × 1            0.98         0.87        0.68           1.33
8 × 2            0.96         0.93        0.69           1.40
32 × 1           0.99         0.83        0.61           1.03
32 × 2           1.02         0.96        0.61           0.97
===============  ===========  ==========  =============  ============
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from ctypes import c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from dsexplore._internal.aio.backends import syscalls as sc

SWITCH = "DSEXPLORE_AIO_LOOP"
"""The environment variable that selects the Python loops if it is ``python``."""
_SOURCE = Path(__file__).with_name("flow.c")
_LONGEST_COMPILATION = 60
"""Timeout of the compiler in seconds."""


class Steady(ctypes.Structure):
    """Arguments and progress of the loop in C: ``struct steady`` of flow.c, where the fields are described."""

    first: int
    end: int
    minimum: int
    depth: int
    step: int
    length: int
    until: float
    addresses: int | None
    begun: int | None
    latencies: int | None
    finished: int
    ready: int
    now: float
    _fields_ = (
        *((name, c_int64) for name in ("first", "end", "minimum", "depth", "step", "length")),
        ("until", c_double),
        *((name, c_void_p) for name in ("addresses", "begun", "latencies")),
        *((name, c_int64) for name in ("finished", "ready")),
        ("now", c_double),
    )


Function = Callable[[Any, Any], None]
"""A function of flow.c; its arguments are a `Steady` and an engine's queue, both by reference."""


def function(name: str) -> Function | None:
    """Return a function of flow.c by name; None if flow.c could not be compiled."""
    library = _library()
    if isinstance(library, str):
        return None
    compiled: Any = library[name]
    compiled.restype = None
    compiled.argtypes = (c_void_p, c_void_p)
    return compiled  # type: ignore[no-any-return]


def why_not() -> str | None:
    """Return why the loops run in Python here; None if they run in C.

    The first call may compile flow.c, which takes some tenths of a second.
    """
    library = _library()
    return library if isinstance(library, str) else None


@cache
def _library() -> ctypes.CDLL | str:
    """Return the compiled library, or the reason why there is none."""
    if os.environ.get(SWITCH) == "python":
        return f"{SWITCH} asks for it"
    if not sc.SUPPORTED:
        return "this is not 64-bit Linux"
    try:
        return _loaded(_cache_folder())
    except OSError as error:
        return str(error)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "dsexplore"


def _loaded(folder: Path) -> ctypes.CDLL:
    """Load the library from the folder, compiling it first if it is missing.

    Raises:
        OSError: the library cannot be compiled, stored or loaded, or another user could have written it.
    """
    command = _compiler()
    path = folder / f"flow-{_fingerprint(command)}.so"
    if not path.exists():
        _compile(command, path)
    folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(folder, os.fstat(folder_fd))
        _check_owner(path, os.lstat(path.name, dir_fd=folder_fd))
        # loaded from the folder that was checked, even if another folder has been moved to its path
        return ctypes.CDLL(f"/proc/self/fd/{folder_fd}/{path.name}")
    except OSError as error:
        raise OSError(f"{path} cannot be used: {error}") from error
    finally:
        os.close(folder_fd)


def _compiler() -> list[str]:
    """Return the command of the C compiler: ``CC`` from the environment, else ``cc``."""
    command = shlex.split(os.environ.get("CC") or "cc")
    path = shutil.which(command[0]) if command else None
    if path is None:
        raise FileNotFoundError(f"there is no C compiler ({' '.join(command) or 'CC is empty'})")
    return [os.path.realpath(path), *command[1:]]


def _fingerprint(command: list[str]) -> str:
    """Return a hash of the source, the machine and the compiler."""
    compiler = Path(command[0]).stat()
    parts = (*command, compiler.st_size, compiler.st_mtime_ns, platform.machine(), _SOURCE.read_text())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _compile(command: list[str], path: Path) -> None:
    """Compile flow.c beside `path` and move the library there, so that several processes may do it at the same time."""
    _make_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=path.parent) as scratch:
        library = Path(scratch) / path.name
        arguments = ["-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        try:
            done = subprocess.run(
                [*command, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_COMPILATION,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} ran for more than {_LONGEST_COMPILATION} s") from None
        if done.returncode != 0 or not library.exists():
            output = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
            raise OSError(f"{command[0]} does not compile it: {output[0]}")
        library.chmod(0o500)
        library.replace(path)


def _make_folder(folder: Path) -> None:
    """Create the folder, unless it is in another user's home, where sudo would make it unusable for that user."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if existing.stat().st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{existing} belongs to another user: set XDG_CACHE_HOME to a folder of yours")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def _check_owner(path: Path, state: os.stat_result) -> None:
    """Raise PermissionError if another user could have written a file or folder."""
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o022 or stat.S_ISLNK(state.st_mode):
        raise PermissionError(f"another user could have written {path}; make it yours alone, or remove it")
