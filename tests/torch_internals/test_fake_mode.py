"""Calls on fake tensors have short keys, under which torch caches their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dsexplore._internal.torch_internals.fake_mode import ShortKeyMode


@pytest.fixture
def mode() -> Iterator[ShortKeyMode]:
    with ShortKeyMode(allow_non_fake_inputs=True) as active:
        yield active


def key(mode: ShortKeyMode, *args: Any, **kwargs: Any) -> Any:
    return mode.key_of(torch.ops.aten.add.Tensor, args, kwargs)


def test_calls_that_differ_have_different_keys(mode: ShortKeyMode) -> None:
    one = torch.ones(2, 3)
    calls = [
        key(mode, 1),
        key(mode, 1.0),
        key(mode, True),
        key(mode, None),
        key(mode),
        key(mode, [1, 2]),
        key(mode, (1, 2)),
        key(mode, [1, 2], 3),
        key(mode, [1], 2, 3),
        key(mode, one),
        key(mode, torch.ones(3, 2)),
        key(mode, torch.ones(3, 2).t()),
        key(mode, torch.ones(3, 3)[1:]),
        key(mode, torch.ones(2, 3, dtype=torch.float64)),
        key(mode, torch.ones(2, 3, requires_grad=True)),
        key(mode, torch.ones(2, 3, dtype=torch.complex64)),
        key(mode, torch.ones(2, 3, dtype=torch.complex64).conj()),
        key(mode, one, alpha=1),
        key(mode, one, beta=1),
        key(mode, one, 1),
        key(mode, dtype=torch.float32),
        key(mode, dtype=torch.float64),
        key(mode, device=torch.device("cpu")),
        key(mode, device=torch.device("cuda", 0)),
        key(mode, device=torch.device("cuda", 1)),
        mode.key_of(torch.ops.aten.sub.Tensor, (one,), {}),
    ]
    assert None not in calls
    assert len(set(calls)) == len(calls)


def test_what_holds_around_a_call_belongs_to_its_key(mode: ShortKeyMode) -> None:
    one = torch.ones(2)
    before = key(mode, one)
    with torch.inference_mode():
        assert key(mode, one) != before
    torch.set_default_dtype(torch.float64)
    try:
        assert key(mode, one) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert key(mode, one) == before


def test_equal_calls_have_equal_keys(mode: ShortKeyMode) -> None:
    one, other = torch.ones(2, 3), torch.zeros(2, 3)
    assert key(mode, one, [1, (one, 2.0)], alpha="x") == key(mode, other, [1, (one, 2.0)], alpha="x") is not None


def test_a_call_with_something_unknown_has_no_key(mode: ShortKeyMode) -> None:
    with FakeTensorMode():
        foreign = torch.ones(2)
    sparse = torch.ones(2, 2).to_sparse()
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        real = torch.ones(2)
    current = torch.device("cuda")  # whichever that is
    for unknown in (object(), {1}, real, foreign, sparse, torch.tensor(3.0), current):
        assert key(mode, unknown) is None
        assert key(mode, [1, [unknown]]) is None
        assert key(mode, 1, alpha=unknown) is None


def test_results_are_torchs_own_where_it_makes_its_keys_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShortKeyMode, "_cache_key", lambda mode, *given: FakeTensorMode._cache_key(mode, *given))
    FakeTensorMode.cache_clear()
    with ShortKeyMode() as mode:
        one = torch.ones(2, 3)
        made = one + 1
        assert mode.cache_entry(mode.key_of(torch.ops.aten.add.Tensor, (one, 1), {})) is None
        assert (made.shape, type(made)) == ((2, 3), FakeTensor)


def test_lazy_conjugates_are_torchs_own_to_make(mode: ShortKeyMode) -> None:
    one = torch.ones(2, 3, dtype=torch.complex64)
    plain, conjugate = torch.ops.aten.t.default, torch.ops.aten._conj.default
    assert one.t().conj().is_conj()
    assert mode.cache_entry(mode.key_of(plain, (one,), {})) is not None
    assert mode.cache_entry(mode.key_of(conjugate, (one.t(),), {})) is None
