"""Waiting for what another process, a thread or a page brings about."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

MOST = 200.0
"""Seconds that anything may take where other work keeps the machine busy."""


_NAP = partial(time.sleep, 0.01)


def wait_until(holds: Callable[[], bool], seconds: float = MOST, pause: Callable[[], object] = _NAP) -> None:
    """Look again and again whether a condition holds, with a pause between looks.

    Raises:
        AssertionError: it did not hold within that many seconds.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"what was waited for did not come within {seconds:.0f} s"
        pause()
