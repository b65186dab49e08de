"""Which tool wrote a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore.trace.importers.foreign import foreign_files, kind_of_file


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"PAR1", ""),
        (b'{"a": 1}', ""),
        (b'{"traceEvents": []}', "profiler"),
        (b'[{"ph": "X"}]', "profiler"),
        (b'{"entries": []}', "recorder"),
    ],
)
def test_a_file_is_known_by_its_content(tmp_path: Path, content: bytes, kind: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert kind_of_file(file) == kind
    assert foreign_files(file) == ([file] if kind not in ("", "empty") else [])


def test_what_cannot_be_opened_is_no_tools_file(tmp_path: Path) -> None:
    assert kind_of_file(tmp_path) == kind_of_file(tmp_path / "missing") == ""
    assert foreign_files(tmp_path / "missing") == foreign_files(tmp_path) == []
