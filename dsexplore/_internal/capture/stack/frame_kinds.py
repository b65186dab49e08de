"""Classifies the frames of a Python stack: the user's line, a module's call, autograd, an optimizer, FSDP, DTensor, …

Frames are classified by file and function name, once per code object. That also works for code that torch.compile has
rewritten. `stack_reading` draws conclusions from the kinds.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from dsexplore._internal.capture.stack.source_lines import Sources
from dsexplore._internal.torch_internals.dispatch import AUTOGRAD_OF_OP
from dsexplore._internal.torch_internals.frames import (
    COMPILED,
    COMPILER,
    ENGINE,
    INTERNAL,
    MODULE_CALL,
    PIPELINE_WARM_UP,
    PLUMBING,
    START_UP,
    TORCH,
    kind_of_torch,
)
from dsexplore._internal.user_code import INSTALLED, STANDARD_LIBRARY

USER: Final = 100  # the program, and packages that it uses
USER_HOOK: Final = 101  # a function of the program with a parameter "bucket", as the hooks of DDP have
USER_SAVES: Final = 102  # a function of the program or a package that saves or loads a state, by its name
OF_CALLER: Final = (USER, USER_HOOK, USER_SAVES)
"""Code that calls torch: the user's, or a package's such as transformers; `user_code` tells them apart."""

_SCHEDULES = "torch.distributed.pipelining.schedules"  # a program that has not imported it has no pipeline
_SAVES = {
    *("state_dict", "load_state_dict", "consolidate_state_dict", "save_pretrained", "save_16bit_model"),
    *(f"{verb}_{what}" for verb in ("save", "load") for what in ("checkpoint", "model", "state")),
}
"""Names of functions that save or load a state."""

_STANDARD_LIBRARY = tuple(folder + os.sep for folder in STANDARD_LIBRARY)
_INSTALLED = tuple(folder + os.sep for folder in INSTALLED)
_PACKAGE = str(Path(__file__).parents[3]) + os.sep
_ENGINES = ("deepspeed", "megatron.core", "numpy")
"""Packages whose lines are not the user's: they call the user's model and communicate for it. numpy calls back into
torch when it converts tensors."""

kinds: dict[int, int] = {}
"""{identity of a code object: its kind}; not by the object, as its hash reads all of its bytecode."""
_TO_AUTOGRAD = 3
"""Number of frames between the kernel of a functional op and torch's autograd, which calls it."""
_MOST_LINES = 10_000
"""Number of lines that `UserLines` remembers; a program with more creates code as it runs."""
_references: dict[int, weakref.ref[CodeType]] = {}
"""{identity of a code object: weak reference}. Its callback removes a freed object's kind, as identities are reused."""


def kind_of(code: CodeType) -> int:
    """Return the kind of a code object: `USER`, …, or one of `torch_internals.frames`."""
    kind = kinds.get(id(code))
    return _remember(code, _classify(code)) if kind is None else kind


def _remember(code: CodeType, kind: int) -> int:
    """Set the kind of a code object until it is freed, and return the kind."""
    key = id(code)

    def forget(_reference: weakref.ref[CodeType]) -> None:
        kinds.pop(key, None)
        _references.pop(key, None)

    _references[key] = weakref.ref(code, forget)
    kinds[key] = kind
    return kind


def kind_of_issuer(frame: FrameType | None) -> int:
    """Return the kind of the code that issued the op dispatched at `frame`, directly or by C++ code that it called."""
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind != PLUMBING:
            return kind
        frame = frame.f_back
    return ENGINE


def meaningful(frame: FrameType | None) -> Iterator[tuple[int, FrameType]]:
    """Yield (kind, frame) for the meaningful frames of a stack, innermost first.

    Frames of kind `PLUMBING` and `INTERNAL`, which make up most of a stack, are omitted.
    """
    while frame is not None:
        code = frame.f_code
        kind = kinds.get(id(code))
        if kind is None:
            kind = kind_of(code)
        if kind > INTERNAL:
            yield kind, frame
        frame = frame.f_back


def threads_in_engine() -> set[int]:
    """Return the identifiers of threads that wait in autograd's engine for a backward that they called."""
    return {thread for thread, frame in sys._current_frames().items() if kind_of(frame.f_code) == ENGINE}


def _classify(code: CodeType) -> int:
    """Return the kind of a code object by its file, its name and its parameters."""
    file, name = code.co_filename, code.co_name
    if name == "__torch_dispatch__":
        return PLUMBING
    if file.startswith(TORCH):
        return kind_of_torch(code)
    if file.startswith(_PACKAGE):
        return PLUMBING
    if file.startswith(("<frozen ", "<eval_with_key>")) or file == "<string>":
        return INTERNAL
    if "torchinductor" in file:
        return COMPILED
    if _is_plumbing(file) or _is_of_engine(file):
        return INTERNAL
    if name in _SAVES:
        return USER_SAVES
    return USER_HOOK if "bucket" in code.co_varnames[: code.co_argcount] else USER


def _is_plumbing(file: str) -> bool:
    """Return True for files of the standard library and for ``typing_extensions``, which torch's decorators run in."""
    if file.endswith("typing_extensions.py"):
        return True
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)


def _is_of_engine(file: str) -> bool:
    """Return True for files of the packages of `_ENGINES` that this process has imported."""
    packages = (sys.modules.get(name) for name in _ENGINES)
    return any(file.startswith(folder + os.sep) for package in packages for folder in getattr(package, "__path__", ()))


def mark_start_up(code: CodeType) -> None:
    """Classify a function as one that communicates before the first step."""
    _remember(code, START_UP)


def mark_module_call(code: CodeType) -> None:
    """Classify a function of the recorder as one that calls a module."""
    _remember(code, MODULE_CALL)


def inside_compiled() -> bool:
    """Return True if the current call was made by torch.compile, or by code that it compiled."""
    for kind, _ in meaningful(sys._getframe(1)):
        if kind in OF_CALLER:
            return False
        if kind in (COMPILED, COMPILER):
            return True
    return False


def caller_of_op(frames: int) -> FrameType:
    """Return the frame from which to read the stack of a collective: outside the op's observer and torch's autograd.

    Python allocates an object for each frame that is read. So the frames of torch's autograd between a functional op
    without gradient and its kernel are skipped.

    Args:
        frames: the number of frames from the caller of this function out to the observer's outermost frame.
    """
    try:
        frame = sys._getframe(1 + frames + _TO_AUTOGRAD)
    except ValueError:  # the stack is shorter: C++ code called the op in its own thread
        return sys._getframe(1 + frames)
    return frame if frame.f_code is AUTOGRAD_OF_OP else sys._getframe(1 + frames)


def is_warm_up() -> bool:
    """Return True while a pipeline runs its stages once to learn shapes."""
    return _SCHEDULES in sys.modules and any(kind == PIPELINE_WARM_UP for kind, _ in meaningful(sys._getframe(1)))


def user_lines(frame: FrameType | None, depth: int) -> Sources:
    """Return up to `depth` innermost lines of the user's code, searching outward from a frame."""
    lines: Sources = ()
    while frame is not None and len(lines) < depth:
        if kind_of(frame.f_code) in OF_CALLER:
            lines += ((frame.f_code, frame.f_lasti),)
        frame = frame.f_back
    return lines


class UserLines:
    """Finds the user's lines of frames, and returns the same object for the same line.

    A program calls modules on few lines, and each further object would cost Python's garbage collector time.
    """

    def __init__(self) -> None:
        self._cache: dict[tuple[int, int], Sources] = {}
        """{(identity of the code, offset of the instruction): line}; the line keeps the code alive."""

    def innermost(self, frame: FrameType | None) -> Sources:
        """Return the innermost line of the user's code, searching outward from a frame; empty if there is none."""
        if len(self._cache) >= _MOST_LINES:
            self._cache.clear()
        line = user_lines(frame, 1)
        if not line:
            return line
        code, offset = line[0]
        return self._cache.setdefault((id(code), offset), line)

    def release(self) -> None:
        """Drop all references to the program's code."""
        self._cache.clear()
