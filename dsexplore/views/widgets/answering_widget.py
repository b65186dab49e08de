"""The base of all widgets: each browser message has a number, which is sent back with the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anywidget
import traitlets


class AnsweringWidget(anywidget.AnyWidget):
    """A widget whose browser side knows which of its messages are answered; see ``kernel_state.js``.

    All that a message changes is sent back in one message, with its number.

    All that a message changes is sent in one message, with its number.

    Args:
        on_event: called with each message that is no change of a trait.
        traits: of the widget.
    """

    asked = traitlets.Int(0).tag(sync=True, echo_update=False)
    """Number of the browser's last change of traits."""
    answered = traitlets.Int(0).tag(sync=True)
    """Number of the last message that was handled."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_event = on_event
        self.on_msg(self._on_message)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply the changes that the browser made."""
        with self._answering(sync_data):
            super().set_state(sync_data)

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        with self._answering(content):
            self._receive(content)

    def _receive(self, content: dict[str, Any]) -> None:
        """Handle a message of the browser."""
        if self._on_event is not None:
            self._on_event(content)

    @contextmanager
    def _answering(self, message: Mapping[str, Any]) -> Iterator[None]:
        """Send the number of a message with everything changed in this context, also if it raises."""
        with self.hold_sync():
            try:
                yield
            finally:
                if "asked" in message:
                    self.answered = int(message["asked"])
