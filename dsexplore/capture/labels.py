"""What a layer over torch says of the collectives that it issues.

The layer sets ``current.label`` while it calls torch. Each collective that the recorder meets meanwhile in that thread
carries the label, and a recording may keep labelled collectives only (`Recording.add`).
"""

from __future__ import annotations

import threading
from typing import Any


class Label:
    """One call of the layer, which may issue several collectives.

    Args:
        ends_with_call: whether what the call issues is over when the call returns. The layer then calls
            `recorder.end_label`, and the recorder asks for no callback of the collective's own, which costs a switch
            of threads.
    """

    __slots__ = ("ends_with_call", "issued")

    def __init__(self, ends_with_call: bool) -> None:
        self.ends_with_call = ends_with_call
        self.issued: list[Any] = []
        """The collectives that the call issued, in order: each an `Issued`, which refers to its label."""


class _Current(threading.local):
    label: Label | None = None


current = _Current()
"""``current.label`` is the label of what the running thread issues; None outside any labelled call."""
