"""What belongs to the key of a call, and which calls have none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsexplore.worlds.fake.argument_keys import append_arguments


def key_of(*args: Any, **kwargs: Any) -> tuple[object, ...] | None:
    """The key of a call whose tensors are known by their shapes; those of no dimension are not known."""

    def append(key: list[object], tensor: torch.Tensor) -> bool:
        key.append(tensor.shape)
        return tensor.dim() > 0

    key: list[object] = []
    return tuple(key) if append_arguments(key, args, kwargs, torch.Tensor, append) else None


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (key_of(1), key_of(1.0)),
        (key_of(1), key_of(True)),
        (key_of([1, 2]), key_of((1, 2))),
        (key_of([1, 2], 3), key_of([1], 2, 3)),
        (key_of(ONE), key_of(torch.ones(3))),
        (key_of(ONE, alpha=1), key_of(ONE, beta=1)),
        (key_of(ONE, 1), key_of(ONE, alpha=1)),
        (key_of(dtype=torch.float32), key_of(dtype=torch.float64)),
        (key_of(None), key_of()),
    ],
)
def test_calls_that_differ_have_different_keys(one: object, other: object) -> None:
    assert one is not None
    assert one != other


def test_calls_that_are_alike_have_one_key() -> None:
    assert key_of(ONE, [1, (ONE, 2.0)], alpha="x") == key_of(torch.zeros(2), [1, (ONE, 2.0)], alpha="x") is not None


@pytest.mark.parametrize("unknown", [object(), {1}, torch.nn.Parameter(ONE), torch.ones(())])
def test_a_call_with_something_unknown_has_no_key(unknown: object) -> None:
    assert key_of(unknown) is None
    assert key_of([1, [unknown]]) is None
    assert key_of(1, alpha=unknown) is None
