"""Saved results: what is no JSON, damaged, of another format or of a newer version is refused by one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from dsexplore.errors import UsageError
from dsexplore.saved_json import SavedFormat, SavedJson


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
            "f is a damaged number: ValueError(\"invalid literal for int() with base 10: 'x'\")",
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
