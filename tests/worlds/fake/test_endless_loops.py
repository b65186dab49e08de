"""A loop that depends on the value of a fake tensor ends, and one remark says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.fake import endless_loops
from dsexplore._internal.worlds.fake.endless_loops import ENDED
from dsexplore._internal.worlds.fake.invented_values import READ

pytestmark = pytest.mark.filterwarnings("ignore:.*fake tensors")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless_loops, "OTHER_ANSWER", 50)


START = """\
import torch, torch.distributed as dist
dist.init_process_group()
count = 0
mask = torch.randn(8) > 0
"""
END = """
dist.all_reduce(torch.empty(count))
"""


def iterations(loop: str, tmp_path: Path, **options: object) -> tuple[int, tuple[str, ...]]:
    """Return the number of iterations, which the program sends, and the notes of its trace."""
    path = tmp_path / "train.py"
    path.write_text(START + loop + END)
    trace = dsexplore.run(path, world_size=2, fake=True, **options)  # type: ignore[arg-type]
    return trace.events["message_bytes"].item() // 4, trace.info.notes


@pytest.mark.parametrize(
    "loop",
    [
        "while mask.any():\n    count += 1",
        "while not torch.zeros(3).any():\n    count += 1\n    if count > 10**5: break",
        "while (\n    count < 10**6\n    and mask.any()\n):\n    count += 1",
        "while True:\n    count += 1\n    if not mask.any():\n        break",
        "more = True\nwhile more:\n    count += 1\n    more = bool(mask.any())",
        "while len(mask.nonzero()):\n    count += 1",
        "def left():\n    return mask.any().item()\nwhile left():\n    count += 1",
    ],
)
def test_a_truth_value_or_a_size_gets_the_other_answer(loop: str, tmp_path: Path) -> None:
    count, notes = iterations(loop, tmp_path)
    assert abs(count - 50) <= 1
    (ended,) = [note for note in notes if note.startswith(ENDED)]
    assert f"({tmp_path / 'train.py'}:" in ended


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for _ in range(150):\n    if mask.any():\n        count += 1", 150),
        ("step = 0\nwhile step < 150:\n    step += 1\n    if mask.any():\n        count += 1", 150),
        ("for _ in range(3):\n    while mask.any() and count < 5:\n        count += 1", 5),
    ],
)
def test_what_decides_no_loop_is_answered_as_before(loop: str, expected: int, tmp_path: Path) -> None:
    count, notes = iterations(loop, tmp_path)
    assert count == expected
    assert [note.split(" (")[0] for note in notes] == [READ]


def test_a_number_ends_the_program_with_the_line_and_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless_loops, "NUMBERS", 300)
    loop = "loss = torch.randn(())\nwhile loss.item() > 0.1:\n    count += 1"
    with pytest.raises(UsageError, match=r"train.py:6 has read values .* 300 times.*--value .*train.py:6=0"):
        iterations(loop, tmp_path)
    assert iterations(loop, tmp_path, values={"train.py:6": 0})[0] == 0


def test_so_does_any_line_after_very_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless_loops, "MOST", 300)
    with pytest.raises(UsageError, match=r"train.py:5 has read .* 300 times"):
        iterations("for _ in iter(lambda: mask.any().item(), False):\n    count += 1", tmp_path)
    with pytest.raises(UsageError, match=r"train.py:5 has read .* 300 times"):  # a value that was given ends nothing
        iterations("while mask.any():\n    count += 1", tmp_path, values={"train.py:5": 1})
