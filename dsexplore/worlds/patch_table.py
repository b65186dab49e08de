"""`TABLE`: everything of torch that is replaced while a simulated world is open, in the order in which it is replaced.

Where several entries replace one name, the later one stands outside: it is called first, and calls the earlier one.
"""

from __future__ import annotations

from dsexplore.torch_internals.patches import Entry

TABLE: tuple[Entry, ...] = ()
