"""`Generator`: random numbers on ``cuda``, drawn by torch's CPU generator, with states in CUDA's form.

The state of a CUDA generator is 16 bytes, a seed and an offset, and DTensor's random ops compute with both. A state of
the CPU generator does not fit into them, so the 16 bytes *name* a point of it: reading a state after numbers were drawn
draws an offset, and reseeds the CPU generator from seed and offset. Setting the state reseeds it from the same pair,
so the same numbers follow. `torch.cuda.manual_seed` and `torch.manual_seed` seed one generator: the later call counts.
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
"""torch's own class, which `GENERATOR` replaces inside a block."""


class Generator(CpuGenerator):
    """A CPU generator with the interface of a CUDA generator; pass it wherever torch takes a generator.

    Args:
        index: index of its CUDA device as the program sees it; None for the current one.
        shared: generator that draws in its place, such as the CPU's default one; None if it draws itself.
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
        """Restart from a seed."""
        self._reseed(int(seed), 0)
        return self

    def seed(self) -> int:
        """Restart from a random seed, and return it."""
        self._reseed(self._draw("seed"), 0)
        return self._seed

    def initial_seed(self) -> int:
        """Return the seed that was last set."""
        cpu_seed: int = self._draw("initial_seed")
        was_seeded_directly = cpu_seed != self._cpu_seed  # by torch.manual_seed
        return cpu_seed if was_seeded_directly else self._seed

    def get_state(self) -> torch.Tensor:
        """Return seed and offset as a tensor of 16 bytes."""
        self._settle()
        data = (self._seed % (1 << 64)).to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        with without_fake_mode():
            return torch.tensor(list(data), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> Generator:
        """Continue from a saved state.

        Raises:
            RuntimeError: the state does not have 16 bytes.
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
        """Continue from an offset of the same seed."""
        self._settle()
        self._reseed(self._seed, int(offset))
        return self

    def clone_state(self) -> Generator:
        """Return a new generator with the same state."""
        return Generator(self._index).set_state(self.get_state())

    def _settle(self) -> None:
        """Give the CPU generator's current point a seed and an offset, if numbers were drawn since the last time."""
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
        """Call a method of the CPU generator that draws for this one, below this class."""
        return getattr(super() if self._shared is None else self._shared, method)(*args)


def _mixed(seed: int, offset: int) -> int:
    """Return a seed for the CPU generator, which depends on both numbers."""
    digest = hashlib.blake2b(f"{seed}:{offset}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class _OnFakeTensors(CpuGenerator):
    """A CPU generator for fake tensors. A state that was moved to a device, to broadcast it, has no values."""

    def set_state(self, new_state: torch.Tensor) -> CpuGenerator:
        """Continue from a saved state; ignore a fake one, which has no values."""
        return self if isinstance(new_state, FakeTensor) else super().set_state(new_state)


class _AnyGenerator(type):
    """Metaclass of ``torch.Generator`` inside a block: it creates a `Generator` for ``cuda``, torch's for the CPU."""

    def __call__(cls, device: Any = "cpu") -> CpuGenerator:
        device = torch.device(device)
        if device.type == "cuda":
            return Generator(device.index)
        return CpuGenerator(device) if entered() is None else _OnFakeTensors(device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, CpuGenerator)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, CpuGenerator)


def _default_generators(original: Any, parts: Parts) -> tuple[Generator, ...]:
    """Replace ``torch.cuda.default_generators`` by a generator per GPU, all with the state of the CPU's."""
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
