"""Parts of torch that do not work on fake tensors raise an error that names them and a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.simulate import simulate


@torch.library.custom_op("dsexplore_test_unsupported::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    """Return an op without a fake implementation."""
    return x * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), r"torch\.nested\.nested_tensor .*: pad"),
        (
            lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            r"torch\.nested\.as_nested_tensor .*: pad",
        ),
        (lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(2)), r"torch\.jit\.trace .*: skip it in this run"),
    ],
)
def test_what_has_no_form_on_fake_tensors_is_refused(call: Callable[[], object], message: str) -> None:
    with simulate(8, fake=True), pytest.raises(UsageError, match=message + r".* without --fake \(fake=False\)"):
        call()
    call()  # torch's own again


@pytest.mark.parametrize("opening", [lambda: simulate(8, fake=True), lambda: commtrace(world_size=8, fake=True)])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.tensor([torch.ones(()), torch.ones(())]), "torch.stack"),
        (lambda: torch.unique_consecutive(torch.ones(4)), "aten.unique_consecutive"),
        (lambda: double(torch.ones(2)), "torch.library.register_fake"),
    ],
)
def test_torchs_own_errors_get_a_remedy_once(
    opening: Callable[[], object], call: Callable[[], object], message: str
) -> None:
    with pytest.raises(RuntimeError) as caught, opening():  # type: ignore[attr-defined]
        call()
    (remedy,) = caught.value.__notes__
    assert message in remedy
    assert "run a smaller model without --fake (fake=False)" in remedy


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(ValueError, match="mine") as caught, simulate(8, fake=True):
        raise ValueError("mine")
    assert not hasattr(caught.value, "__notes__")
