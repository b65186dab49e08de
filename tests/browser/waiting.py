"""Waiting for what a page brings about in Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

MOST = 180.0
"""Seconds that anything may take where other work keeps the machine busy."""


def wait_until(page: Any, holds: Callable[[], bool]) -> None:
    """Let a page go on until a condition holds; fails the test where it does not within `MOST` seconds."""
    end = time.monotonic() + MOST
    while not holds():
        assert time.monotonic() < end, "what the page was to bring about did not come"
        page.wait_for_timeout(50)
