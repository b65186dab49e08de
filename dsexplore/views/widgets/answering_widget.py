"""The base of all widgets: each message of the browser bears a number, which is sent back with the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anywidget
import traitlets


class AnsweringWidget(anywidget.AnyWidget):
    """A widget whose browser knows which of its messages are answered; see ``kernel_state.js``.

    All that a message changes is sent in one message, with its number.

    Args:
        on_event: called with each message that is no change of a trait.
        traits: of the widget.
    """

    asked = traitlets.Int(0).tag(sync=True, echo_update=False)
    """The number of the browser's last change of traits."""
    answered = traitlets.Int(0).tag(sync=True)
    """The number of the last message that was dealt with."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_event = on_event
        self.on_msg(self._on_message)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Take over what the browser changed."""
        with self._answering(sync_data):
            super().set_state(sync_data)

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        with self._answering(content):
            self._receive(content)

    def _receive(self, content: dict[str, Any]) -> None:
        """Deal with a message of the browser."""
        if self._on_event is not None:
            self._on_event(content)

    @contextmanager
    def _answering(self, message: Mapping[str, Any]) -> Iterator[None]:
        """Send the number of a message with all that is changed here, also where that fails."""
        with self.hold_sync():
            try:
                yield
            finally:
                if "asked" in message:
                    self.answered = int(message["asked"])
