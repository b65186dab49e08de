"""Messages that the explorer's page sends to the kernel."""

from __future__ import annotations

from typing import Any


def send(explorer: Any, message: dict[str, Any]) -> None:
    """Send what the browser sends when something is clicked or zoomed."""
    explorer.widget._handle_custom_msg(message, [])
