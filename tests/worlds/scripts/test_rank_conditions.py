"""Conditions on the rank are found where they can be computed from the rank alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.worlds.scripts.rank_axes import Axis
from dsexplore._internal.worlds.scripts.rank_conditions import WorldLayout, code_of_other_ranks, conditions_on_rank

LAYOUT = WorldLayout(16, 8, [Axis("dp", 4, 4), Axis("tp", 1, 4)])


def found(folder: Path, text: str) -> list[tuple[str, list[int]]]:
    script = folder / "train.py"
    script.write_text(text)
    return [
        (test.text, [rank for rank, holds in enumerate(test.holds) if holds])
        for test in conditions_on_rank([str(script)], LAYOUT)
    ]


@pytest.mark.parametrize(
    ("condition", "ranks"),
    [
        ("rank == 1", [1]),
        ("not rank", [0]),
        ("dist.get_rank() == dist.get_world_size() - 1", [15]),
        ("self.rank in (3, 5)", [3, 5]),
        ("2 <= global_rank < 4", [2, 3]),
        ("int(os.environ['RANK']) == 4", [4]),
        ("int(os.environ.get('LOCAL_RANK', 0)) == 7", [7, 15]),
        ("local_rank == 0 and rank > 0", [8]),
        ("accelerator.is_main_process", [0]),
        ("accelerator.is_local_main_process", [0, 8]),
        ("dp_rank == 1", [4, 5, 6, 7]),
        ("mesh.get_local_rank('tp') == 3", [3, 7, 11, 15]),
    ],
)
def test_is_found(tmp_path: Path, condition: str, ranks: list[int]) -> None:
    assert ranks in [holds for _, holds in found(tmp_path, f"if {condition}:\n    pass\n")]


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 99: pass",  # never
        "if step == 3: pass",
        "if rank == other: pass",
        "if f(rank) == 1: pass",
        "if rank ** 9 ** 9 ** 9 == 3: pass",  # would take for ever
        "if 1 // (rank - 3): pass",  # divides by zero
        "if rank ==",
        "if cfg.dp_size == 4: pass",
    ],
)
def test_is_left_out(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


def test_each_once_and_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a = rank == 0\nb = 1 if rank else 2\nwhile rank == 0 and x: pass\n")
    (test,) = conditions_on_rank([str(script)], LAYOUT)
    assert test.where.startswith(f"{script}:")
    assert conditions_on_rank([str(tmp_path / "nowhere.py")], LAYOUT) == []


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("if rank == 1:\n    pass", 1),
        ("if dist.get_rank() == 3:\n    pass", 1),
        ("def f():\n    if self.rank == 2:\n        pass", 1),
        ("if rank == dist.get_world_size() - 1:\n    pass", 1),
        ("if rank == 0:\n    pass", 0),  # logging
        ("if rank == 5:\n    pass", 0),  # the rank that runs
        ("if rank == 16:\n    pass", 0),  # not in the world
        ("if local_rank == 1:\n    pass", 0),  # one on each node
        ("if rank != 1:\n    pass\nif rank == other:\n    pass\nif frank == 'x':\n    pass", 0),
        ("is_first = rank == 1", 0),  # says nothing of what runs
        ("this does not parse", 0),
    ],
)
def test_code_of_another_rank_is_noted(tmp_path: Path, text: str, noted: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    notes = code_of_other_ranks(str(script), 5, LAYOUT)
    assert len(notes) == noted
    assert all(f"{script}:" in note and "this is rank 5" in note for note in notes)


def test_a_script_that_is_not_there_has_no_code_of_other_ranks(tmp_path: Path) -> None:
    assert code_of_other_ranks(str(tmp_path / "nowhere.py"), 0, LAYOUT) == []
