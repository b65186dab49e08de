"""Random calls with tensors of all kinds: no signal ends the process, no byte is wrong in a file, a tensor, or beside.

Modules: ``aio/handle.py``, ``aio/staging.py``, ``aio/pool.py``.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dsexplore._internal.errors import UsageError
from dsexplore.aio import aio_handle
from tests.aio.test_kinds_of_tensors import CALLS, DTYPES, WITHOUT, Labeled, call
from tests.programs import printed

_BESIDE = 64
"""Bytes before and behind each tensor that no call may change."""
_LARGEST = 40_000
KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda data: data,
    "parameter": lambda data: torch.nn.Parameter(data, requires_grad=data.is_floating_point()),
    "subclass": lambda data: data.as_subclass(Labeled),
    "shaped": lambda data: data[: data.numel() // 6 * 6].view(2, -1, 3),
    "empty": lambda data: data[:0],
    "scalar": lambda data: data[0],
    "detached": lambda data: (data * 1 if data.is_floating_point() else data).detach(),
}


class Held:
    """A tensor with memory of its own between two guards of known bytes."""

    def __init__(self, generator: random.Random) -> None:
        self.whole = bytearray(generator.randbytes(2 * _BESIDE + generator.randrange(8, _LARGEST) // 8 * 8))
        memory = torch.frombuffer(self.whole, dtype=torch.uint8)[_BESIDE:-_BESIDE]
        self.tensor = KINDS[generator.choice([*KINDS])](memory.view(generator.choice(DTYPES)))
        self.before = bytes(self.whole)

    def content(self) -> bytes:
        """Return what torch says that the tensor holds."""
        return self.tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()

    def check(self, content: bytes) -> None:
        """Raise unless the tensor holds these bytes, and what lies beside it is as before."""
        assert self.content() == content
        assert self.whole[:_BESIDE] == self.before[:_BESIDE]
        assert self.whole[-_BESIDE:] == self.before[-_BESIDE:]


@contextmanager
def without_memory(generator: random.Random) -> Iterator[torch.Tensor]:
    """Yield a tensor of a random kind that has no memory."""
    made = WITHOUT[generator.choice([*WITHOUT])]()
    if isinstance(made, torch.Tensor):
        yield made
        return
    with made as tensor:
        yield tensor


class Calls:
    """Random calls of one handle on some files, whose content is known."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.generator = random.Random(seed)
        self.files = {folder / f"file{number}": b"" for number in range(4)}
        for path in self.files:
            path.write_bytes(b"")
        self.reads: list[tuple[Held, bytes]] = []
        self.busy: set[Path] = set()
        """Files that an operation in flight reads or writes."""
        self.pending = 0
        self.count = Counter[str]()

    def run(self, handle: aio_handle, calls: int) -> None:
        """Make so many calls, each checked once it is done."""
        for _ in range(calls):
            kind = self.generator.random()
            if kind < 0.2:
                self.refused(handle)
            elif kind < 0.3 or len(self.busy) == len(self.files):
                self.wait(handle)
            else:
                self.moved(handle)
        self.wait(handle)

    def refused(self, handle: aio_handle) -> None:
        name, path = self.generator.choice(CALLS), self.generator.choice([*self.files])
        with without_memory(self.generator) as tensor:
            try:
                answer = call(handle, name, tensor, path)
            except UsageError:
                self.count["refused"] += 1
                return
        assert (name, answer) == ("is_pinned", False)

    def moved(self, handle: aio_handle) -> None:
        held, name = Held(self.generator), self.generator.choice(CALLS[:8])
        path = self.generator.choice([path for path in self.files if path not in self.busy])
        old, content = self.files[path], held.content()
        offset = self.generator.choice([0, 1, 512, 4096, self.generator.randrange(_LARGEST)])
        later = name.startswith("async")
        further: tuple[Any, ...] = (False, False) if name in ("pread", "pwrite") else (False,)
        words = further if name in ("read", "write", "pread", "pwrite") else ()
        named = {"file_offset": offset}
        move = getattr(handle, name)
        if name.endswith("write"):
            answer = move(held.tensor, str(path), *words, **named)
            new = old.ljust(offset, b"\0")[:offset] + content + old[offset + len(content) :] if content else old
            self.files[path] = new
        elif content and offset + len(content) > len(old):
            with pytest.raises(OSError, match="the file holds"):
                move(held.tensor, str(path), *words, **named)
            held.check(content)
            self.count["beyond the end"] += 1
            return
        else:
            answer = move(held.tensor, str(path), *words, **named)
            self.reads.append((held, old[offset : offset + len(content)]))
        self.count[name] += 1
        if later:
            self.busy.add(path)
            self.pending += 1
            assert answer == 0
        elif name in ("read", "write"):  # these leave alone what is pending
            assert answer == 0
            if name == "read":
                held.check(self.reads.pop()[1])
            else:
                assert path.read_bytes() == self.files[path]
        else:
            assert answer == self.pending + 1
            self.check()

    def wait(self, handle: aio_handle) -> None:
        if not self.pending:
            with pytest.raises(UsageError, match="nothing to wait for"):
                handle.wait()
            return
        assert handle.wait() == self.pending
        self.check()

    def check(self) -> None:
        """Check all that was moved, since nothing is in flight."""
        for held, content in self.reads:
            held.check(content)
        assert {path: path.read_bytes() for path in self.files} == self.files
        self.reads.clear()
        self.busy.clear()
        self.pending = 0


def make_calls(folder: str, seed: int, calls: int) -> None:
    """Make random calls in this process, and print how often each was made."""
    warnings.simplefilter("ignore")  # of torch's prototypes
    made = Calls(Path(folder), seed)
    with aio_handle(4096, 3, intra_op_parallelism=2) as handle:
        made.run(handle, calls)
    print(*(made.count[name] for name in ("refused", "beyond the end", *CALLS[:8])))


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(3))
def test_random_calls_with_tensors_of_all_kinds(tmp_path: Path, seed: int) -> None:
    """Run in another process: one that a signal ends prints nothing, and fails."""
    words = printed(f"""
        from tests.aio.test_any_calls import make_calls
        make_calls({str(tmp_path)!r}, {seed}, 300)
    """)
    assert len(words.split()) == 2 + 8
    assert min(map(int, words.split())) > 5, words
