"""DeepSpeed's builder returns our handle while it is installed, and its own operator before and afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dsexplore import aio
from dsexplore._internal.errors import UsageError

COMPILED = SimpleNamespace(aio_handle="DeepSpeed's", deepspeed_memcpy="its copy")


class OpBuilder:
    """Stand-in for DeepSpeed's builder: each operator inherits `load`, which compiles."""

    compiled = 0

    def load(self, verbose: bool = True) -> Any:
        OpBuilder.compiled += 1
        return COMPILED


class AsyncIOBuilder(OpBuilder):
    NAME = "async_io"


class GDSBuilder(AsyncIOBuilder):
    NAME = "gds"


@pytest.fixture(autouse=True)
def builders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    OpBuilder.compiled = 0
    module = ModuleType("deepspeed.ops.op_builder")
    vars(module)["AsyncIOBuilder"] = AsyncIOBuilder
    for name in ("deepspeed", "deepspeed.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder", module)
    yield
    aio.uninstall()


def test_handles_are_ours_and_nothing_is_compiled() -> None:
    before = vars(AsyncIOBuilder).copy()
    installed = aio.install()
    assert aio.install() is installed
    operator = AsyncIOBuilder().load(verbose=False)
    assert (operator.aio_handle, operator.aio_read, operator.aio_write) == (aio.aio_handle, aio.aio_read, aio.aio_write)
    assert OpBuilder.compiled == 0
    aio.uninstall()
    aio.uninstall()
    assert AsyncIOBuilder().load() is COMPILED
    assert vars(AsyncIOBuilder) == before


def test_what_else_the_operator_has_is_deepspeeds() -> None:
    with aio.install():
        operator = AsyncIOBuilder().load()
        assert operator.deepspeed_memcpy == "its copy"
        assert not hasattr(operator, "gds_handle")
        assert GDSBuilder().load() is COMPILED
    assert AsyncIOBuilder().load() is COMPILED


def test_a_builder_with_a_method_of_its_own_gets_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Any, verbose: bool = True) -> str:
        return "by its own method"

    monkeypatch.setattr(AsyncIOBuilder, "load", load, raising=False)
    with aio.install():
        assert AsyncIOBuilder().load().aio_handle is aio.aio_handle
    assert AsyncIOBuilder().load() == "by its own method"
    assert vars(AsyncIOBuilder)["load"] is load


def test_without_deepspeed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed.ops.op_builder", None)
    with pytest.raises(UsageError, match="no DeepSpeed whose aio_handle could be replaced"):
        aio.install()
