"""Keeps torch.compile away from the recorder's own functions.

Where torch.compile leaves a frame to Python, it still looks at every frame called from there, ours included: it
would compile a hook as a graph of its own, and skip it the next time.
"""

from __future__ import annotations

from types import CodeType


def leave_to_python(code: CodeType) -> None:
    """Never compile this function as a frame of its own, nor what it calls; inlined into a graph, it still is."""
    try:
        from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
    except ImportError:
        return  # a torch that names it otherwise: then a graph more is all that happens
    set_code_exec_strategy(code, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
