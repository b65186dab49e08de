"""A user's script or module, run in this process as ``python script.py`` or ``python -m package.module`` would.

While it runs, ``__main__`` (also in ``sys.modules``, so that its classes can be pickled), ``sys.argv`` and
``sys.path[0]`` are the script's; the working directory does not change. Torch's default dtype and float32 precision
are restored afterwards. Tracebacks of its errors show only frames of the script.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.tracebacks import frames_where

_PACKAGE = str(Path(__file__).parents[3])
_MAIN = "__main__"


class PreparedProgram(NamedTuple):
    """A program that is ready to run."""

    compile: Callable[[], CodeType]
    """Compiles the program."""
    main: ModuleType
    """The ``__main__`` module to run it in."""
    folder: str
    """Its ``sys.path[0]``."""


@dataclass(frozen=True)
class Program:
    """A program to run: the path of a script, or the dotted name of a module, and its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def check(self) -> None:
        """Check that the script exists; a module is found only when it is run.

        Raises:
            UsageError: there is no such script, or it is a folder.
        """
        if self.is_module:
            return  # to find it, its parent packages would be imported, which are part of the program
        path = Path(self.target)
        if path.is_dir():
            raise UsageError(f"{self.target} is a folder: give the script in it that is run, or -m package.module")
        if not path.is_file():
            raise UsageError(
                f"there is no script {self.target} in {Path.cwd()}: give the path of a Python file, "
                "or -m package.module"
            )

    def prepare(self) -> PreparedProgram:
        """Find the program, and create its ``__main__`` module.

        Raises:
            UsageError: there is no such module, or it has no Python code.
        """
        main = ModuleType(_MAIN)
        main.__dict__["__builtins__"] = builtins
        if self.is_module:
            spec = _find(self.target)
            main.__spec__, main.__file__, main.__loader__ = spec, spec.origin, spec.loader
            main.__package__ = spec.parent
            return PreparedProgram(compile=partial(_module_code, spec), main=main, folder=str(Path.cwd()))
        path = Path(self.target).absolute()
        loader = SourceFileLoader(_MAIN, str(path))
        main.__file__, main.__loader__, main.__package__ = str(path), loader, None
        return PreparedProgram(compile=partial(_script_code, loader), main=main, folder=str(path.resolve().parent))


def _script_code(loader: SourceFileLoader) -> CodeType:
    return compile(loader.get_data(loader.path), loader.path, "exec", dont_inherit=True)


def _module_code(spec: ModuleSpec) -> CodeType:
    code: CodeType = spec.loader.get_code(spec.name)  # type: ignore[union-attr] # `_find` checked that it has one
    return code


def _find(name: str) -> ModuleSpec:
    """Return the spec of a module that can be run; for a package, that of its ``__main__``.

    Raises:
        UsageError: there is no such module, or it has no Python code.
    """
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            package, name = name, f"{name}.__main__"
            spec = importlib.util.find_spec(name)
            if spec is None:
                raise UsageError(f"-m {package}: {package} is a package without a __main__ module: name a module in it")
    except ModuleNotFoundError as error:
        raise UsageError(f"-m {name}: {error}, with {Path.cwd()} first on the path") from None
    if spec is None:
        raise UsageError(f"-m {name}: there is no module {name}, with {Path.cwd()} first on the path")
    if not hasattr(spec.loader, "get_code") or spec.origin is None:
        raise UsageError(f"-m {name}: {name} has no Python code to run")
    return spec


@contextmanager
def as_main(program: Program) -> Iterator[Callable[[], None]]:
    """Make a program ``__main__`` for the block, and yield the function that runs it.

    Raises:
        UsageError: there is no such module.
    """
    before = sys.modules.get(_MAIN), sys.argv, sys.path, list(sys.path)
    sys.argv = [program.target, *program.arguments]
    if program.is_module:
        sys.path.insert(0, str(Path.cwd()))
    try:
        prepared = program.prepare()
        main = prepared.main
        if program.is_module:
            sys.argv[0] = str(main.__file__)
        else:
            sys.path.insert(0, prepared.folder)
        sys.modules[_MAIN] = main
        with torch_settings_restored():
            yield lambda: exec(prepared.compile(), main.__dict__)
    finally:
        main_before, sys.argv, sys.path, sys.path[:] = before
        if main_before is not None:
            sys.modules[_MAIN] = main_before


@contextmanager
def torch_settings_restored() -> Iterator[None]:
    """Restore the default dtype and the precision of float32 matrix products after the block."""
    matmul = torch.backends.cuda.matmul
    dtype, precision, older_name = torch.get_default_dtype(), matmul.fp32_precision, None
    with suppress(RuntimeError):  # the older function raises once the newer setting was used
        older_name = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        if older_name is not None:
            torch.set_float32_matmul_precision(older_name)
        matmul.fp32_precision = precision


def without_our_frames(error: BaseException, seen: set[int] | None = None) -> None:
    """Remove this package's frames from the tracebacks of an error, and of its causes and contexts.

    Args:
        error: the error.
        seen: identities of errors that are done; None at the first call.
    """
    seen = set() if seen is None else seen
    if id(error) in seen:
        return
    seen.add(id(error))
    error.__traceback__ = frames_where(error.__traceback__, lambda code: not _is_ours(code))
    for other in (error.__cause__, error.__context__):
        if other is not None:
            without_our_frames(other, seen)


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE) or (code.co_filename == "<string>" and code.co_name == "jump")


def exit_status(error: BaseException | None) -> int | str:
    """Return the exit status, or the message, with which Python ends after an error; 0 for None."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        code: object = 0 if error.code is None else error.code
        return code if isinstance(code, int) else str(code)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
