"""Values of files with one thing wrong: another type, another sign, or missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, True, -1, 1.5, 1 << 70, float("nan"), float("inf"), "", "x", [], [None], {}, {"x": 1})


def damaged(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the key of what is wrong, and `value` with it, for each value of it and of what is inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, inner in items:
        name = key if isinstance(key, str) else where
        for wrong in WRONG:
            yield name, _with(value, key, wrong)
        if isinstance(value, dict):
            yield name, {other: kept for other, kept in value.items() if other != key}
        for inside, changed in damaged(inner, name):
            yield inside, _with(value, key, changed)
    if isinstance(value, dict):
        yield "unheard_of", {**value, "unheard_of": 1}


def _with(value: Any, key: Any, new: Any) -> Any:
    if isinstance(value, dict):
        return {**value, key: new}
    return [*value[:key], new, *value[key + 1 :]]


def assert_named(refused: list[tuple[str, str]], file: str = "sweep.json") -> None:
    """Assert that each error begins with the file, and names the key that is wrong, but where the format is.

    Args:
        refused: key and error.
        file: its name.
    """
    assert [said for _, said in refused if not said.startswith(f"{file} ")] == []
    assert [(key, said) for key, said in refused if key not in said and key != "format"] == []


def toml(table: dict[str, Any]) -> str:
    """Return a table as TOML; values that TOML has not, as ``null``, are left out."""
    return "\n".join(f"{json.dumps(key)} = {_toml(value)}" for key, value in table.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {_toml(inner)}" for key, inner in value.items() if inner is not None)
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(inner) for inner in value if inner is not None)}]"
    if isinstance(value, (bool, int)):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(float(value))
