"""The compiled library is cached for the user, not loaded if others could write it, and replaced by Python's loop.

Modules: ``aio/backends/compiled_loop.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends.choose import loop_of
from dsexplore._internal.aio.backends.syscalls import SUPPORTED
from dsexplore.aio import aio_handle
from tests.programs import printed

BLOCK = 4096


needs_c = pytest.mark.skipif(
    not SUPPORTED or shutil.which(os.environ.get("CC") or "cc") is None, reason="no 64-bit Linux, or no C compiler"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(compiled_loop.SWITCH, raising=False)
    return tmp_path / "dsexplore"


def found() -> str:
    """Return why a new process has no library; ``None`` if it has one."""
    return printed("from dsexplore._internal.aio.backends import compiled_loop; print(compiled_loop.why_not())").strip()


@needs_c
def test_it_is_compiled_once(folder: Path) -> None:
    assert found() == "None"
    (made,) = folder.iterdir()
    assert (made.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o500, 0o700)
    before = made.stat()
    assert found() == "None"
    assert (made.stat().st_ino, made.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@needs_c
def test_another_source_or_compiler_has_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = compiled_loop._compiler()
    names = {compiled_loop._fingerprint(command), compiled_loop._fingerprint([*command, "-g"])}
    changed = tmp_path / "flow.c"
    changed.write_text(compiled_loop._SOURCE.read_text() + "\n")
    monkeypatch.setattr(compiled_loop, "_SOURCE", changed)
    assert len(names | {compiled_loop._fingerprint(command)}) == 3


@pytest.mark.parametrize(
    ("compiler", "why"),
    [("no-such-compiler", "no C compiler (no-such-compiler)"), ("false", "false does not compile it: status 1")],
)
def test_without_a_compiler_python_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert why in found()
    assert not folder.exists() or not list(folder.iterdir())


def test_a_cache_that_cannot_be_written_is_the_reason(folder: Path) -> None:
    folder.write_text("no folder")
    assert re.search("File exists|Not a directory", found())


@needs_c
def test_a_cache_that_forbids_programs_is_the_reason(
    mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(mounted("noexec,size=4m")))
    assert "cannot be used" in found()


@needs_c
def test_a_damaged_library_is_the_reason(folder: Path) -> None:
    assert found() == "None"
    (made,) = folder.iterdir()
    made.chmod(0o700)
    made.write_bytes(b"damaged")
    assert f"{made} cannot be used" in found()


@needs_c
@pytest.mark.parametrize("which", ["folder", "library"])
@pytest.mark.parametrize("how", ["mode", "owner"])
def test_what_another_user_could_have_written_is_not_loaded(folder: Path, which: str, how: str) -> None:
    assert found() == "None"
    (made,) = folder.iterdir()
    place = folder if which == "folder" else made
    if how == "mode":
        place.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(place, 12345, -1)
    else:
        pytest.skip("only root gives files away")
    assert f"another user could have written {place}" in found()


@needs_c
def test_a_link_in_its_place_is_not_followed(folder: Path, tmp_path: Path) -> None:
    assert found() == "None"
    (made,) = folder.iterdir()
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    assert str(made) in found()


@needs_c
def test_no_folder_is_made_in_another_users_home(folder: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(tmp_path, 12345, -1)
    assert "belongs to another user: set XDG_CACHE_HOME" in found()
    assert not folder.exists()


@needs_c
@pytest.mark.processes
def test_processes_may_compile_it_at_once(folder: Path) -> None:
    words = [
        sys.executable,
        "-c",
        "from dsexplore._internal.aio.backends import compiled_loop as c; print(c.why_not())",
    ]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=240)[0] for process in started] == ["None\n"] * 4
    assert len(list(folder.iterdir())) == 1


def test_the_user_may_ask_for_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_loop.SWITCH, "python")
    monkeypatch.setattr(compiled_loop, "_library", compiled_loop._library.__wrapped__)
    assert loop_of("linux-aio") == "Python, since DSEXPLORE_AIO_LOOP asks for it"
    assert loop_of("threads") == "Python"
    data, path = np.arange(1 << 20, dtype=np.uint8), folder.parent / "file"
    with aio_handle(BLOCK) as handle:
        handle.sync_pwrite(data, str(path))
    assert path.read_bytes() == data.tobytes()
    assert not folder.exists()
