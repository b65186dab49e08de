"""The label that a layer over torch gives the collectives that it issues.

The layer sets ``current.label`` while it calls torch. Each collective that the recorder meets meanwhile in that thread
carries the label. A recording may treat labeled collectives in its own way (`Recording.add`).
"""

from __future__ import annotations

import threading

from dsexplore._internal.capture.collectives.issued_collective import Label


class _Current(threading.local):
    label: Label | None = None


current = _Current()
"""``current.label`` is the label of what the running thread issues; None outside any labeled call."""
