"""Keeps torch.compile away from the recorder's own functions.

Where torch.compile leaves a frame to Python, it still tries to compile every function called from there, ours
included: an observer would become a graph of its own.
"""

from __future__ import annotations

from types import CodeType


def leave_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function, and what it calls, as a graph of its own.

    A graph of the user's that calls the function may still contain it.
    """
    _leave(code, with_calls=True)


def leave_frame_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function as a graph of its own; what the function calls may become one."""
    _leave(code, with_calls=False)


def _leave(code: CodeType, with_calls: bool) -> None:
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return  # a torch that names it otherwise: then a graph more is all that happens
    called = _FrameAction.SKIP if with_calls else _FrameAction.DEFAULT
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, called))
