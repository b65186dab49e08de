"""`feeding`: what is counted, with a made-up clock and made-up use.

Modules: ``aio/data_loaders/feeding.py``, ``aio/data_loaders/feeding_command.py``, ``aio/data_loaders/process_use.py``.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dsexplore import aio
from dsexplore.aio.data_loaders.feeding import bytes_of, measure, samples_of
from dsexplore.aio.data_loaders.process_use import ProcessUse, children_of, use_of, used_between
from dsexplore.cli import main
from dsexplore.errors import UsageError

LOADER = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=4)


def test_batches_after_the_first_ones_are_counted() -> None:
    """Of a clock that ticks at each look: one look at the begin, one per batch, one at the end."""
    ticks = count()
    looks = iter([({1: ProcessUse(1.0, 10, 0)}, {}), ({1: ProcessUse(3.0, 30, 20)}, {2: ProcessUse(4.0, 5, 6)})])
    found = measure(LOADER, 5.0, 0.5, 2, lambda: float(next(ticks)), lambda: next(looks))
    assert (found.batches, found.samples, found.nbytes, found.seconds, found.workers) == (5, 20, 80, 6.0, 1)
    assert (found.own, found.of_workers) == (ProcessUse(2.0, 20, 20), ProcessUse(4.0, 5, 6))
    assert found.stall == pytest.approx(6 / 5 - 0.5)


def test_a_loader_that_ends_is_measured_to_its_end() -> None:
    found = measure(LOADER, 1e9, None, 0, lambda: 0.0, lambda: ({}, {}))
    assert (found.batches, found.samples) == (16, 64)


@pytest.mark.parametrize(
    ("batch", "samples", "nbytes"),
    [
        (torch.ones(3, 5), 3, 60),
        ({"input_ids": torch.ones(2, 7, dtype=torch.int64), "label": torch.ones(2)}, 2, 120),
        ([torch.ones(6), [torch.ones(6), "text"]], 6, 48),
        (["a", "b"], 2, 0),
        (torch.tensor(1.0), 1, 4),
        ("text", 1, 0),
    ],
)
def test_samples_and_bytes_of_a_batch(batch: object, samples: int, nbytes: int) -> None:
    assert (samples_of(batch), bytes_of(batch)) == (samples, nbytes)


def test_the_system_says_what_a_process_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    before = use_of([os.getpid()])
    (tmp_path / "file").read_bytes()
    used = used_between(before, use_of([os.getpid()]))
    assert used.read >= 1 << 20
    assert used_between({}, {7: ProcessUse(1.0, 2, 3)}) == ProcessUse(1.0, 2, 3)
    assert use_of([2**22 + 1]) == {}
    assert isinstance(children_of(os.getpid()), list)


@pytest.mark.parametrize(
    ("loader", "options", "said"),
    [
        (3, {}, "int yields no batches"),
        ([], {}, "ended after 0 batches"),
        ([1, 2], {}, "no more than 2 batches"),
        ([1], {"seconds": 0}, "seconds 0"),
        ([1], {"step_seconds": -1}, "step_seconds -1"),
    ],
)
def test_what_is_no_loader_is_refused(loader: object, options: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        aio.feeding(loader, **options)  # type: ignore[arg-type]


def test_the_command_takes_a_loader_of_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("def loader():\n    return [[1, 2]] * 9\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n")
    page = tmp_path / "page.html"
    assert main(["feeding", f"{script}:loader", "--step-seconds", "9", "--html", str(page)]) == 0
    assert "a step does not wait for it" in capsys.readouterr().out
    assert "samples per second" in page.read_text(encoding="utf-8")
    for words in ([f"{script}:other"], ["nothing.py:loader"], [f"{script}:loader", "--html", "no/folder/x.html"]):
        assert main(["feeding", *words]) == 2
        assert capsys.readouterr().err.startswith("dsexplore feeding: ")
