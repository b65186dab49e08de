"""Files that a script opens for writing are noted, and those that several ranks write."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dsexplore._internal.worlds.scripts.written_files import watched_files, written_by_several


def test_files_of_one_rank_are_no_ones_business() -> None:
    assert written_by_several([["a"], ["b"]]) == []
    (note,) = written_by_several([("/a", "/b", "/c", "/d")] * 2)
    assert "and 1 more were opened for writing by 2 of them" in note
    (note,) = written_by_several([["/a"], ["/a", "/b"], ["/a", "/b"]])
    assert "were opened for writing by 2 to 3 of them" in note


def test_a_temporary_file_without_a_name_is_no_result(tmp_path: Path) -> None:
    seen: list[str] = []
    with watched_files(seen.append, "/nowhere"):
        with tempfile.TemporaryFile(dir=tmp_path) as file:
            file.write(b"kept nowhere")
        (tmp_path / "a").write_text("kept")
    assert seen == [str(tmp_path / "a")]
