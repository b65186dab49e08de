"""Names that the installed torch may lack."""

from __future__ import annotations

import pytest
import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals import names
from dsexplore._internal.torch_internals.names import TorchName, internal, is_there, minor_version, torch_at_least


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names asked for here are not among those that the package uses."""
    monkeypatch.setattr(names, "registered_names", dict(names.registered_names))


def test_a_name_that_is_there() -> None:
    assert internal("torch._C:_current_graph_task_id") is torch._C._current_graph_task_id
    assert internal("torch.nn:Module._apply") is torch.nn.Module._apply
    assert internal("torch.distributed") is torch.distributed
    assert names.registered_names["torch.nn:Module._apply"].is_there


@pytest.mark.parametrize(
    "path", ["torch.nn:Module._gone", "torch.nn:Gone.method", "torch._gone:anything", "torch._gone"]
)
def test_a_name_that_is_not_there_raises_when_it_is_used(path: str) -> None:
    gone = internal(path, since="2.11")
    assert not is_there(gone)
    assert not isinstance(3, gone)
    assert not hasattr(gone, "__wrapped__")
    dotted = path.replace(":", ".")
    for use in (gone, lambda: gone.attribute):
        with pytest.raises(UsageError) as caught:
            use()
        assert dotted in str(caught.value)
        assert f"torch {torch.__version__}" in str(caught.value)
        assert "pip install 'torch>=2.11,<2.16'" in str(caught.value)


def test_the_owner_of_a_name() -> None:
    assert TorchName("torch.nn:Module._apply").owner() is torch.nn.Module
    assert TorchName("torch:compile").owner() is torch
    assert not is_there(TorchName("torch.nn:Gone.method").owner())


def test_versions_that_have_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.1a0+cpu")
    assert TorchName("torch:a").is_expected
    assert TorchName("torch:a", since="2.13", until="2.13").is_expected
    assert not TorchName("torch:a", since="2.14").is_expected
    assert not TorchName("torch:a", until="2.12").is_expected
    assert torch_at_least("2.13")
    assert not torch_at_least("2.14")


@pytest.mark.parametrize(
    ("version", "expected"), [("2.9", (2, 9)), ("2.15.0", (2, 15)), ("2.16.0a0+git1", (2, 16)), ("3.0rc1", (3, 0))]
)
def test_minor_versions(version: str, expected: tuple[int, int]) -> None:
    assert minor_version(version) == expected


def test_a_name_of_another_package() -> None:
    name = TorchName("json:loads")
    assert not name.is_of_torch
    assert name.is_loaded
    assert not TorchName("package_that_is_not_there:x").is_there
