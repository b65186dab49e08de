"""Saved results: what is no JSON, of another format or of a newer version is refused by one error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsexplore.errors import UsageError
from dsexplore.saved_json import check_format, read_json


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(UsageError, match=r"a\.json is not a saved sweep: "):
        read_json(path, "sweep")


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ([], "f is not a saved sweep: write one with S.save"),
        ({"format": "other"}, "f is not a saved sweep: write one with S.save"),
        ({"format": "mine", "version": 3}, "f was saved by a newer dsexplore (version 3): update dsexplore"),
    ],
)
def test_another_format_or_a_newer_version_is_refused(loaded: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_format(loaded, "f", "sweep", "S.save", format_name="mine", version=2)
    assert str(caught.value) == said


def test_this_version_and_older_ones_are_read() -> None:
    for version in (1, 2):
        check_format({"format": "mine", "version": version}, "f", "sweep", "S.save", format_name="mine", version=2)
