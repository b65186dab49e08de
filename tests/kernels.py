"""`Kernel`: a process of Jupyter that runs cells, which can be interrupted as a front end does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

from jupyter_client.manager import start_new_kernel

PATIENCE = 240
"""Seconds that a cell, or the start of a kernel, may take on a busy machine."""


class Kernel:
    """A client of a kernel that waits for each cell, and can interrupt it at what the cell shows."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client
        self.shown: list[str] = []
        """Text that the last cell printed and displayed."""

    def ok(self, cell: str) -> str:
        """Run a cell that must not fail, and return what it showed."""
        reply = self.run(cell)
        assert reply["status"] == "ok", reply
        return "\n".join(self.shown)

    def run(self, cell: str, interrupt_when: Callable[[str], bool] | None = None, times: int = 1) -> dict[str, Any]:
        """Run a cell, and interrupt it so many times once what it has shown is enough; return the kernel's reply."""
        self.shown = []
        message = self._client.execute(cell)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if interrupt_when is not None and interrupt_when("\n".join(self.shown)):
                interrupt_when = None
                for _ in range(times):
                    self._manager.interrupt_kernel()
                    time.sleep(0.02)
            try:
                output = self._client.get_iopub_msg(timeout=0.1)
            except Empty:
                continue
            if output["parent_header"].get("msg_id") != message:
                continue
            if output["msg_type"] == "status" and output["content"]["execution_state"] == "idle":
                return self._reply(message)
            self.shown += texts_of(output)
        raise TimeoutError(f"{cell}\nshowed {self.shown}")

    def _reply(self, message: str) -> dict[str, Any]:
        while True:  # a kernel that starts slowly has answered more than one greeting
            reply = self._client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == message:
                content: dict[str, Any] = reply["content"]
                return content


def texts_of(output: dict[str, Any]) -> list[str]:
    """Return the text of a message in which a kernel sends what a cell prints or displays."""
    content = output["content"]
    if output["msg_type"] == "stream":
        return [content["text"]]
    return [content["data"]["text/plain"]] if "text/plain" in content.get("data", {}) else []


@contextmanager
def running_kernel() -> Iterator[Kernel]:
    """Start a kernel that shows what ranks print while they run, and end it after the block."""
    surroundings = {name: value for name, value in os.environ.items() if name != "DSEXPLORE_PROGRESS"}
    manager, client = start_new_kernel(startup_timeout=PATIENCE, kernel_name="python3", env=surroundings)
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
