"""The label that a layer over torch, such as `dsexplore.comm`, gives the collectives that it issues.

The layer sets ``current.label`` while it calls torch, and the recorder gives the label to each collective that this
thread issues until then. The log of `dsexplore.comm` groups collectives by their labels.
"""

from __future__ import annotations

import threading

from dsexplore._internal.capture.collectives.issued_collective import Label


class _Current(threading.local):
    label: Label | None = None


current = _Current()
"""``current.label`` is the label of the collectives that this thread issues; None outside a labeled call."""
