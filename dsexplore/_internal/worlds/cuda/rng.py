"""Random numbers on a GPU that is not there: torch's CPU generator draws them, seeds and states have CUDA's form.

CUDA's generator state is 16 bytes, a seed and an offset, and DTensor's random ops compute with both. So a state here
*names* a point of the CPU generator: reading a state after numbers were drawn reseeds the generator from the seed and
an offset that it draws, and setting that state reseeds it likewise, so that the same numbers follow.
`torch.cuda.manual_seed` and `torch.manual_seed` seed the same generator: the later one counts.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from dsexplore._internal.torch_internals.cuda import DEFAULT_GENERATORS, GENERATOR
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, without_fake_mode
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.cuda.cuda_driver import Driver
from dsexplore._internal.worlds.fake.fake_dispatch import entered

STATE_BYTES = 16
CpuGenerator = torch.Generator
"""torch's own class, also where the name stands for ours."""


class Generator(CpuGenerator):
    """A CPU generator with the interface of a CUDA generator; pass it wherever torch takes a generator.

    Args:
        index: its CUDA device as the program sees it; None is the current one.
        shared: the generator that draws in its place: the CPU's default one for the default CUDA generator.
    """

    def __new__(cls, index: int | None = None, shared: torch.Generator | None = None) -> Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stub has no __new__

    def __init__(self, index: int | None = None, shared: torch.Generator | None = None) -> None:
        self._index, self._shared = index, shared
        self._seed: int = self._draw("initial_seed")
        self._offset, self._cpu_seed = 0, self._seed
        self._at: bytes | None = self._point() if shared is None else None

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute of a C type
        """CUDA device of the generator as the program sees it."""
        return torch.device("cuda", torch.cuda.current_device() if self._index is None else self._index)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew from a seed."""
        self._reseed(int(seed), 0)
        return self

    def seed(self) -> int:
        """Start anew from a random seed, and return it."""
        self._reseed(self._draw("seed"), 0)
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed that was last set."""
        cpu_seed: int = self._draw("initial_seed")
        return self._seed if cpu_seed == self._cpu_seed else cpu_seed  # another: the CPU generator itself was seeded

    def get_state(self) -> torch.Tensor:
        """Return seed and offset, 16 bytes."""
        self._settle()
        data = (self._seed % (1 << 64)).to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        with without_fake_mode():
            return torch.tensor(list(data), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Continue from a saved state.

        Raises:
            RuntimeError: the state does not have the 16 bytes of a CUDA generator's.
        """
        with without_fake_mode():
            data = bytes(new_state.tolist())
        if len(data) != STATE_BYTES:
            raise RuntimeError(f"RNG state is wrong size: a CUDA generator's has 16 bytes, this one {len(data)}")
        self._reseed(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little"))
        return self

    graphsafe_get_state = get_state  # type: ignore[assignment]  # torch's returns a generator that shares the state
    graphsafe_set_state = set_state  # type: ignore[assignment]

    def get_offset(self) -> int:
        """Return the offset of the state."""
        self._settle()
        return self._offset

    def set_offset(self, offset: int) -> Generator:
        """Continue from another offset of the same seed."""
        self._settle()
        self._reseed(self._seed, int(offset))
        return self

    def clone_state(self) -> Generator:
        """Return a generator that goes on from the same state."""
        return Generator(self._index).set_state(self.get_state())

    def _settle(self) -> None:
        """Name the present point of the CPU generator by seed and offset, if numbers were drawn since it had a name."""
        if self._at == self._point():
            return
        seed = self.initial_seed()
        with without_fake_mode():
            drawn = torch.randint(1 << 40, (), generator=self if self._shared is None else self._shared)
            self._reseed(seed, 4 * int(drawn))  # CUDA's offsets are multiples of 4

    def _reseed(self, seed: int, offset: int) -> None:
        self._seed, self._offset = seed, offset
        self._cpu_seed = _mixed(seed, offset) if offset else seed
        self._draw("manual_seed", self._cpu_seed)
        self._at = self._point()

    def _point(self) -> bytes:
        with without_fake_mode():
            return bytes(self._draw("get_state").numpy())

    def _draw(self, method: str, *args: Any) -> Any:
        """Call a method of the generator that draws."""
        return getattr(super() if self._shared is None else self._shared, method)(*args)


def _mixed(seed: int, offset: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class _OnFakeTensors(CpuGenerator):
    """A CPU generator where tensors are fake: a state that was moved, as those that ranks agree on, has no values."""

    def set_state(self, new_state: torch.Tensor) -> CpuGenerator:
        """Continue from a saved state; ignore a fake one, which has no values."""
        return self if isinstance(new_state, FakeTensor) else super().set_state(new_state)


class _AnyGenerator(type):
    """``torch.Generator``, which makes ours where a program asks for one on ``cuda``."""

    def __call__(cls, device: Any = "cpu") -> CpuGenerator:
        named = torch.device(device)
        if named.type == "cuda":
            return Generator(named.index)
        return CpuGenerator(named) if entered() is None else _OnFakeTensors(named)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, CpuGenerator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, CpuGenerator)


def _default_generators(original: Any, parts: Parts) -> tuple[Generator, ...]:
    return (Generator(shared=torch.default_generator),) * parts[Driver].count


PATCHES: tuple[Entry, ...] = (
    Patch(
        GENERATOR,
        "torch has no generator on that device",
        lambda original, parts: _AnyGenerator("Generator", (), {}),
        when="cuda device",
    ),
    Patch(DEFAULT_GENERATORS, "torch has none without a GPU", _default_generators, when="cuda device"),
)
