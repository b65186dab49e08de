"""Data files of hardware are found by name, alias and path; errors name what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.data_files import DataFiles
from dsexplore._internal.errors import UsageError


@pytest.fixture
def files(tmp_path: Path) -> DataFiles:
    """Return the data files of a package with two files."""
    for name in ("big", "small"):
        (tmp_path / f"{name}.toml").write_text('title = "T"\n[node]\nspeed = 1\n')
    return DataFiles(tmp_path, "disk", "big")


def test_files_are_found_by_name_in_any_case_by_alias_and_by_path(files: DataFiles) -> None:
    assert files.names() == ["big", "small"]
    assert files.path("BIG") == files.path("large", {"large": "big"}) == files.folder / "big.toml"
    assert files.path("mine/own.toml") == Path("mine/own.toml")
    assert files.read(files.path("big")) == {"title": "T", "node": {"speed": 1}}


def test_an_unknown_name_gets_the_near_one(files: DataFiles) -> None:
    with pytest.raises(UsageError, match=r"no hardware named 'larg' is known \(did you mean 'large'\?\): .*big, small"):
        files.path("larg", {"large": "big"})


@pytest.mark.parametrize("content", [b"title =", b"\xff", None])
def test_a_file_that_cannot_be_read_is_named(files: DataFiles, content: bytes | None) -> None:
    path = files.folder / "other.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"the disk file .*other\.toml cannot be read"):
        files.read(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"a", "b"}, None),
        ({"a"}, None),
        ({"b"}, r"lacks node\.a: write the keys that .*big\.toml has"),
        ({"a", "c"}, r"has unknown node\.c: known are a, b"),
    ],
)
def test_keys_are_required_optional_or_unknown(files: DataFiles, keys: set[str], message: str | None) -> None:
    if message is None:
        files.check_keys(Path("x.toml"), keys, {"a"}, {"b"}, "node.")
    else:
        with pytest.raises(UsageError, match=message):
            files.check_keys(Path("x.toml"), keys, {"a"}, {"b"}, "node.")
