"""The module tree as arrays: who is inside whom, which axes have a column, what parameters weigh."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.trace.numbered_modules import place_of
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.trace.facets import Facets
from dsexplore._internal.views.trace.module_tree import ModuleTree, module_tree


def tree_of(traces: ModuleType, events: list, modules: list = (), parameters: list = ()) -> ModuleTree:  # type: ignore[assignment, type-arg]
    rows = {"events": events, "modules": list(modules), "parameters": list(parameters)}
    tables = Tables(**{name: traces.frame(name, found) for name, found in rows.items()})
    return module_tree(tables, Facets(tables.events))


def test_modules_are_in_preorder_and_a_subtree_is_a_slice(traces: ModuleType) -> None:
    names = ["Net", "Net.a", "Net.a.b", "Net.c", "Other"]
    modules = [traces.module(name, name.rpartition(".")[0]) for name in names]
    tree = tree_of(traces, [traces.event(""), traces.event("Net.c.unlisted")], modules)
    assert tree.names == ["Net", "Net.a", "Net.a.b", "Net.c", "Net.c.unlisted", "Other", ""]
    assert tree.labels == ["Net", "a", "b", "c", "unlisted", "Other", "(outside any module)"]
    assert tree.parents.tolist() == [-1, 0, 1, 0, 3, -1, -1]
    assert tree.ends.tolist() == [5, 3, 3, 5, 5, 6, 7]
    assert tree.roots == [0, 5, 6]
    assert tree.children(0) == [1, 3]
    assert tree.with_children(np.arange(1, 8)).tolist() == [15, 5, 3, 9, 5, 6, 7]


@pytest.mark.parametrize(("axes", "last"), [(6, "a0"), (7, "other axes")])
def test_six_axes_have_a_column_each_and_of_more_the_least_share_one(traces: ModuleType, axes: int, last: str) -> None:
    tree = tree_of(traces, [traces.event("Net", i, axis=f"a{i}", wire_bytes=2**i) for i in range(axes)])
    assert tree.axes == [*(f"a{i}" for i in range(axes - 1, axes - 6, -1)), last]
    assert tree.columns_of(["a0", f"a{axes - 1}"]).tolist() == [5, 0]


def test_parameters_count_as_on_the_rank_that_holds_most_and_shared_ones_once(traces: ModuleType) -> None:
    parameters = [
        traces.parameter("Net.up", rank=0, local_bytes=100, global_bytes=150),
        traces.parameter("Net.up", "bias", rank=0, local_bytes=7, global_bytes=7),
        traces.parameter("Net.up", rank=1, local_bytes=50, global_bytes=150),
        traces.parameter("Net.head", rank=0, local_bytes=100, global_bytes=150, shared_with="Net.up.weight"),
        traces.parameter("Net.down", rank=0, local_bytes=1, global_bytes=2),
    ]
    names = ["Net", "Net.up", "Net.down", "Net.head"]
    tree = tree_of(traces, [], [traces.module(name, name.rpartition(".")[0]) for name in names], parameters)
    assert dict(zip(tree.names, tree.local_bytes.tolist(), strict=True)) == {
        "Net": 108, "Net.up": 107, "Net.down": 1, "Net.head": 0,
    }  # fmt: skip
    assert tree.global_bytes.tolist() == [159, 157, 2, 0]


def test_numbered_siblings_are_one_place(traces: ModuleType) -> None:
    names = pl.DataFrame({"name": ["Net.layers.3.up", "Net.layers.12", "Net.3d.up", "", "Net.0.1.2"]})
    assert names.select(place_of(pl.col("name"))).to_series().to_list() == [
        "Net.layers.*.up", "Net.layers.*", "Net.3d.up", "(outside any module)", "Net.*.1.*",
    ]  # fmt: skip
