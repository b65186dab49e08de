"""The search finds the distinct ranks of programs that are functions of the rank, for which all outcomes are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import parse_mesh
from dsexplore._internal.sharding.chunks import Cut
from dsexplore._internal.worlds.scripts.distinct_ranks import MAX_RANKS, Distinct, Outcome, Search
from dsexplore._internal.worlds.scripts.rank_axes import Axis, ObservedGroup, axes_of
from dsexplore._internal.worlds.scripts.rank_conditions import RankTest
from dsexplore._internal.worlds.scripts.shard_shapes import ShardedShape

Does = Callable[[int], object]


def axes(mesh: str, pipeline: str = "") -> list[Axis]:
    spec = parse_mesh(mesh)
    stride = 1
    groups = []
    for name, size in zip(reversed(spec.axes), reversed(spec.shape), strict=True):
        groups.append(ObservedGroup(name, ((stride, size),), name == pipeline))
        stride *= size
    return axes_of(groups, spec, spec.size)


def find(
    mesh: str,
    does: Does,
    pipeline: str = "",
    tests: Sequence[str] = (),
    shapes: Callable[[int], frozenset[ShardedShape]] = lambda _rank: frozenset(),
) -> Distinct:
    """Search a world in which a function gives what each rank does, with rank 0 run."""
    size = parse_mesh(mesh).size

    def outcome(rank: int) -> Outcome:
        held = [tuple(int(length) for length in shape.local(rank)) for shape in sorted(shapes(rank), key=repr)]
        return Outcome(str(does(rank)), shapes(rank), f"{does(rank)} {held}")

    conditions = [
        RankTest(text, "train.py:1", tuple(eval(f"lambda rank: {text}")(r) for r in range(size))) for text in tests
    ]
    search = Search(
        world_size=size,
        axes=axes(mesh, pipeline),
        tests=conditions,
        trace_ranks=lambda ranks: {r: outcome(r) for r in ranks},
        outcomes={0: outcome(0)},
    )
    result = search.find()
    everyone = sorted(rank for one in result.classes for rank in one.ranks)
    assert everyone == list(range(size))  # each rank is described once
    return result


def check(result: Distinct, does: Does) -> None:
    """Assert that each rank does the same as the rank that represents it."""
    for one in result.classes:
        assert {str(does(rank)) for rank in one.ranks} == {str(does(one.representative))}


@pytest.mark.parametrize(
    ("mesh", "pipeline", "does", "classes"),
    [
        ("dp=8", "", lambda r: "same", 1),
        ("dp=1", "", lambda r: "same", 1),
        ("dp=4096,tp=8", "", lambda r: "same", 1),
        ("pp=4,dp=32,tp=8", "pp", lambda r: r // 256, 4),
        ("dp=32,pp=4,tp=8", "pp", lambda r: r // 8 % 4, 4),
        ("dp=512", "", lambda r: r < 300, 2),  # found by halving
        ("dp=512", "", lambda r: r > 0, 2),
        ("dp=512", "", lambda r: (r > 17) + (r > 400), 3),
        ("dp=64,tp=8", "", lambda r: (r % 8 == 7, r // 8 == 0), 4),
        ("dp=2,tp=2", "", lambda r: r == 3, 2),
        ("dp=16,ep=8", "", lambda r: r % 8, 8),  # each expert's owner
        ("pp=4,dp=32,tp=8", "pp", lambda r: (r // 256, r == 0), 5),
        ("pp=4,dp=32,tp=8", "pp", lambda r: (r // 256, r == 1023), 5),
        ("pp=4,dp=32,tp=8", "pp", lambda r: (r // 256, r % 256 == 0), 8),
        ("pp=4,dp=32,tp=8", "pp", lambda r: (r // 256, r // 256 == 0 and r // 8 % 32 == 0), 5),
    ],
)
def test_finds_all_that_differ(mesh: str, pipeline: str, does: Does, classes: int) -> None:
    result = find(mesh, does, pipeline)
    check(result, does)
    assert len(result.classes) == classes
    assert result.unexplained == ()


def test_runs_few_of_many() -> None:
    result = find("pp=16,dp=128,tp=8", lambda rank: rank // 1024, "pp")
    assert len(result.classes) == 16
    assert {len(one.ranks) for one in result.classes} == {1024}
    assert len(result.traced) == 21
    assert result.differ == ("pp",)
    assert result.without_effect == ("dp", "tp")


@pytest.mark.parametrize("does", [lambda rank: rank < 2, lambda rank: rank < 511], ids=["first", "last"])
def test_changes_beside_the_ends_of_an_axis_need_no_halving(does: Does) -> None:
    assert len(find("dp=512", does).traced) <= 7


@pytest.mark.parametrize(
    ("test", "does"),
    [
        ("rank == 77", lambda rank: rank == 77),
        ("rank % 2 == 1", lambda rank: rank % 2),
        ("rank in (3, 90)", lambda rank: rank in (3, 90)),
    ],
)
def test_a_condition_in_the_program_that_axes_do_not_show(test: str, does: Does) -> None:
    result = find("dp=128", does, tests=[test, "rank < 64"])
    check(result, does)
    assert [one for one in result.differ if "train.py" in one or one == "dp"]
    assert "`rank < 64` (train.py:1)" in result.without_effect


@pytest.mark.parametrize("test", ["rank == 0", "rank != 0", "rank < 1"])
def test_a_condition_in_the_program_is_named_before_a_usual_one_of_the_same_ranks(test: str) -> None:
    result = find("dp=8,tp=8", lambda rank: rank == 0, tests=[test])
    assert result.differ == (f"`{test}` (train.py:1)",)
    assert result.without_effect == ("dp", "tp")


def test_uneven_shards_of_one_stage_get_a_rank_each() -> None:
    """A vocabulary of 100 over 16 ranks: 14 hold 7, one holds 2 and one none; the other stage's shards are even."""
    uneven = ShardedShape(((100, (((1, 16), Cut(16)),)), (8, ())))
    even = ShardedShape(((64, (((1, 16), Cut(16)),)), (8, ())))
    result = find(
        "pp=2,dp=16", lambda rank: rank // 16, "pp", shapes=lambda rank: frozenset([even if rank < 16 else uneven])
    )
    assert sorted(len(one.ranks) for one in result.classes) == [1, 1, 14, 16]
    assert {one.ranks for one in result.classes if len(one.ranks) == 1} == {(30,), (31,)}


def test_a_rank_that_nothing_explains_stands_for_itself_and_is_named() -> None:
    middle = 8 * 64 // 2 + 4
    result = find("dp=64,tp=8", lambda rank: rank == middle)
    ((odd, like),) = result.unexplained
    assert odd == middle
    assert like != middle
    assert [one.ranks for one in result.classes if one.representative == middle] == [(middle,)]


def test_too_many_that_differ_are_one_error() -> None:
    with pytest.raises(UsageError, match=f"more than {MAX_RANKS:,} ranks of 4,096 may differ"):
        find("dp=4096", lambda rank: rank)
