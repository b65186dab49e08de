"""Files that are not JSON, damaged, of another format or of a newer version raise one error."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.saved_json import SavedFormat, SavedJson, value_of


class Number(SavedJson):
    FORMAT: ClassVar[SavedFormat] = SavedFormat("mine", 2, "number", "Number.save")

    def __init__(self, value: int) -> None:
        self.value = value

    def to_json(self) -> dict[str, Any]:
        return {**self.FORMAT.header(), "value": self.value}

    @classmethod
    def _read(cls, loaded: dict[str, Any], name: str) -> Self:
        return cls(int(loaded["value"]))


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    path = Number(3).save(tmp_path / "a.json")
    assert path == tmp_path / "a.json"
    assert Number.load(path).value == 3
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for damaged in (b"{", b"\xff", b"[" * 200_000, b"9" * 5_000):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"a\.json is not a saved number: "):
            Number.load(path)


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ([], "f is not a saved number: write one with Number.save"),
        ({"format": "other"}, "f is not a saved number: write one with Number.save"),
        ({"format": "mine", "version": 3}, "f was saved by a newer dsexplore (version 3): update dsexplore"),
        ({"format": "mine", "version": 2}, "f is a damaged number: KeyError('value')"),
        ({"format": "mine", "version": None}, "f is a damaged number: its version is None"),
        ({"format": "mine", "version": "1"}, "f is a damaged number: its version is '1'"),
        (
            {"format": "mine", "version": 2, "value": "x"},
            "f is a damaged number: invalid literal for int() with base 10: 'x'",
        ),
    ],
)
def test_another_format_a_newer_version_and_damage_are_refused(loaded: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Number.from_json(loaded, "f")
    assert str(caught.value) == said


def test_this_version_and_older_ones_are_read() -> None:
    for version in (1, 2):
        assert Number.from_json({"format": "mine", "version": version, "value": 4}).value == 4


@dataclass(frozen=True)
class Inner:
    name: Literal["read", "write"]
    sizes: tuple[int, ...] = ()
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.sizes == (7,):
            raise ValueError("7 is not a size")


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    words: dict[str, str]
    is_whole: bool = False


def test_values_become_the_types_of_the_fields() -> None:
    read = value_of(Outer, {"inner": [{"name": "read", "sizes": [1], "rate": 2}], "words": {"a": "b"}}, "it")
    assert read == Outer([Inner("read", (1,), 2)], {"a": "b"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inner": {}}, "it.inner is {}, and must be a list"),
        ({"inner": [5]}, "it.inner[0] is 5, and must be an object"),
        ({"inner": [{"name": "list"}]}, "it.inner[0].name is 'list', and must be one of 'read', 'write'"),
        ({"inner": [{"name": []}]}, "it.inner[0].name is [], and must be one of 'read', 'write'"),
        ({"inner": [{}]}, "it.inner[0].name is missing"),
        ({"inner": [{"name": "read", "sizes": [1, True]}]}, "it.inner[0].sizes[1] is True, and must be a whole number"),
        ({"inner": [{"name": "read", "rate": float("nan")}]}, "it.inner[0].rate is nan, and must be a number of 0 or"),
        ({"inner": [{"name": "read", "sizes": [7]}]}, "it.inner[0]: 7 is not a size"),
        ({"words": {"a": 1}}, "it.words['a'] is 1, and must be a text"),
        ({"words": []}, "it.words is [], and must be an object"),
        ({"is_whole": 1}, "it.is_whole is 1, and must be true or false"),
        ({"more": 1}, "it.more is not known: inner, words, is_whole are"),
    ],
)
def test_a_value_of_another_type_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        value_of(Outer, {"inner": [], "words": {}, **changes}, "it")
