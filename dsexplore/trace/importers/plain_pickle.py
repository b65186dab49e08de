"""Pickles that hold only plain data: numbers, text, lists, tuples and dicts. No code from a file is ever run."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


class _Plain(pickle.Unpickler):
    """Refuses whatever would import, call or fetch something."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle names {module}.{name}, and plain data names nothing")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to an object outside it")


def load_plain(data: bytes) -> Any:
    """Unpickle plain data.

    Raises:
        pickle.UnpicklingError: it names a class or a function, or refers to an object outside it.
        Exception: the bytes are not a complete pickle.
    """
    return _Plain(io.BytesIO(data)).load()
