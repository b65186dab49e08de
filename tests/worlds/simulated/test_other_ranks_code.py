"""What only another rank runs is found in the source, and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore.worlds.simulated.other_ranks_code import code_of_other_ranks


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("if rank == 1:\n    pass", 1),
        ("if dist.get_rank() == 3:\n    pass", 1),
        ("def f():\n    if self.rank == 2:\n        pass", 1),
        ("if rank == 0:\n    pass", 0),  # logging
        ("if rank == 5:\n    pass", 0),  # the rank that is played
        ("if rank == 8:\n    pass", 0),  # not in the world
        ("if local_rank == 1:\n    pass", 0),
        ("if rank != 1:\n    pass\nif rank == other:\n    pass\nif frank == 'x':\n    pass", 0),
        ("if rank == True:\n    pass", 0),
        ("this does not parse", 0),
    ],
)
def test_finds(tmp_path: Path, text: str, found: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    notes = code_of_other_ranks(script, 5, 8)
    assert len(notes) == found
    assert all(f"{script}:" in note and "this is rank 5" in note for note in notes)


def test_no_script_has_none(tmp_path: Path) -> None:
    assert code_of_other_ranks(tmp_path / "nowhere.py", 0, 2) == []
