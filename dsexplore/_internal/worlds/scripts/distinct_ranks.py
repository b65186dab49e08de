"""Find the classes of ranks that do the same, by running few ranks of a world.

A rank's traffic depends on its coordinates, on its shards, and on conditions on its number. The search runs

* all stages of a pipeline, at one coordinate of the other axes (the second, which is typical);
* the first and the last rank along all other axes at once. If these differ from the second, the first and the last
  rank along each axis, and then by bisection ranks between them, until each change is located;
* for each condition on the rank, in the program or common in frameworks, the first and the last rank on its rarer side;
* one rank for each combination of differing coordinates and conditions, and for each size of shards;
* a rank in the middle of all axes, as a check.

Ranks are compared by the digests of their traces. A rank that was not run is represented by one that was, with the
same stage, conditions and shards. This assumes that an axis has the same effect at all coordinates of the other axes,
that nothing changes between two equal ranks on an axis, and that the program depends on the rank in no other way.
Every rank that was run is checked against these assumptions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.rank_axes import Axis
from dsexplore._internal.worlds.scripts.rank_conditions import RankTest
from dsexplore._internal.worlds.scripts.shard_shapes import ShardedShape, ranks_by_shapes

MAX_STAGES = 64
"""Longest pipeline axis on which all stages are run; a longer one is searched like other axes."""
MAX_RANKS = 1024
"""Maximal number of ranks to run."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """The outcome of running a rank.

    Attributes:
        digest: digest of its trace; equal for ranks that do the same.
        shapes: shardings of the parameters whose local shapes are left out of the digest.
        full_digest: digest that includes all local shapes.
    """

    digest: str
    shapes: frozenset[ShardedShape] = frozenset()
    full_digest: str = ""


@dataclass(frozen=True)
class RankClass:
    """Ranks that do the same: one that was run, and all ranks that it represents, itself included."""

    representative: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Distinct:
    """The classes of all ranks of a world, and the axes and conditions that separate them.

    Attributes:
        classes: the classes, by representative.
        traced: all ranks that were run.
        differ: axes and conditions that make a difference.
        without_effect: axes and conditions that make none.
        unexplained: pairs of a rank and the one that should represent it, which differ for no known reason.
    """

    classes: tuple[RankClass, ...]
    traced: tuple[int, ...]
    differ: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()
    unexplained: tuple[tuple[int, int], ...] = ()


TraceRanks = Callable[[Sequence[int]], Mapping[int, Outcome]]
"""Runs ranks, each once, and returns their outcomes."""


@dataclass
class Search:
    """The search for the distinct ranks of one world.

    Args:
        world_size: number of ranks.
        axes: axes of the world.
        tests: conditions on the rank in the program.
        trace_ranks: runs ranks.
        outcomes: {rank: outcome} of the ranks that were run so far.
    """

    world_size: int
    axes: Sequence[Axis]
    tests: Sequence[RankTest]
    trace_ranks: TraceRanks
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def find(self) -> Distinct:
        """Run the ranks that are needed, and return the classes.

        Raises:
            UsageError: more ranks differ than can be run.
        """
        self._ranks: Numbers = np.arange(self.world_size)
        # The base rank is the second along all axes but pipelines.
        self._base = sum(axis.stride for axis in self.axes if not axis.is_pipeline and axis.size > 1)
        tests = [*self.tests, *self._usual_tests()]
        # By rank, the number of axes on which it is not at the base rank's coordinate.
        self._distance: Numbers = np.zeros(self.world_size, dtype=np.int64)
        for axis in self.axes:
            self._distance += self._coordinates(axis) != axis.coordinate(self._base)
        # The ranks that show the effect of axes: those on a line through the base rank.
        self._along = {self._base, *self._stages()}
        # Ranks of the last stage, which do least, come last, so that no processor is idle for long.
        self._trace([self._middle(), *sorted(self._along), *self._corners(), *self._ends_of_tests(tests)])
        keys = self._keys_by_axes()
        typical = self._typical(keys)
        matter = self._tests_that_matter(tests, typical)
        for test in matter:
            keys = _joined(keys, np.array(test.holds, dtype=np.int64))
        self._trace_representatives(keys)
        keys = self._keys_by_shards(keys)
        return self._classes(keys, tests, matter)

    def _trace(self, ranks: Iterable[int]) -> None:
        """Run those of the ranks that were not run before."""
        new = [rank for rank in dict.fromkeys(ranks) if rank not in self.outcomes]
        if len(self.outcomes) + len(new) > MAX_RANKS:
            raise UsageError(
                f"more than {MAX_RANKS:,} ranks of {self.world_size:,} may differ from each other: name those to "
                "run, like --ranks 0,8, or run --ranks all of a smaller world"
            )
        if new:
            self.outcomes.update(self.trace_ranks(new))

    def _rank_at(self, axis: Axis, coordinate: int) -> int:
        """Return the rank with this coordinate on an axis, and the base rank's coordinates on all others."""
        return self._base + (coordinate - axis.coordinate(self._base)) * axis.stride

    def _stages(self) -> list[int]:
        """Return a rank of each pipeline stage: that with the base rank's other coordinates."""
        pipelines = (axis for axis in self.axes if axis.is_pipeline and axis.size <= MAX_STAGES)
        return [self._rank_at(axis, coordinate) for axis in pipelines for coordinate in range(axis.size)]

    def _corners(self) -> list[int]:
        """Return the first and the last rank of the base rank's pipeline stage."""
        axes = [axis for axis in self.axes if not axis.is_pipeline]
        first = self._base - sum(axis.coordinate(self._base) * axis.stride for axis in axes)
        return [first, first + sum((axis.size - 1) * axis.stride for axis in axes)]

    def _ends_of_axes(self) -> list[int]:
        """Return the first and the last rank along each axis; empty if both corners equal the base rank.

        A corner equals the base rank if no axis has an effect; effects of several axes would have to cancel out.
        """
        if {self.outcomes[rank].digest for rank in self._corners()} == {self.outcomes[self._base].digest}:
            return []
        return [self._rank_at(axis, at) for axis in self.axes for at in (0, axis.size - 1)]

    def _middle(self) -> int:
        """Return the rank in the middle of all axes."""
        return sum(axis.size // 2 * axis.stride for axis in self.axes)

    def _usual_tests(self) -> list[RankTest]:
        """Return the conditions that frameworks test: first and last rank, of the world and of a pipeline stage."""
        of_stage = [axis for axis in self.axes if not axis.is_pipeline]
        first = np.all([self._coordinates(axis) == 0 for axis in of_stage], axis=0) if of_stage else None
        last = np.all([self._coordinates(axis) == axis.size - 1 for axis in of_stage], axis=0) if of_stage else None
        usual = {
            "rank 0": self._ranks == 0,
            "the last rank": self._ranks == self.world_size - 1,
            "the first rank along all axes": first,
            "the last rank along all axes": last,
        }
        return [
            RankTest(text, "", tuple(map(bool, holds)))
            for text, holds in usual.items()
            if holds is not None and len(set(holds.tolist())) > 1
        ]

    def _coordinates(self, axis: Axis) -> Numbers:
        return self._ranks // axis.stride % axis.size

    def _ends_of_tests(self, tests: Sequence[RankTest]) -> list[int]:
        """Return the first and the last rank on the rarer side of each condition."""
        ends = []
        for test in tests:
            holds = np.array(test.holds)
            rarer = np.flatnonzero(holds if holds.sum() * 2 <= len(holds) else ~holds)
            ends += [int(rarer[0]), int(rarer[-1])]
        return ends

    def _keys_by_axes(self) -> Numbers:
        """Return a key per rank, equal for ranks with coordinates that make no difference."""
        self._find_changes()
        keys: Numbers = np.zeros(self.world_size, dtype=np.int64)
        self._differing: list[Axis] = []
        for axis in self.axes:
            classes = self._classes_along(axis)
            if len(set(classes)) > 1:
                self._differing.append(axis)
                keys = _joined(keys, np.array(classes)[self._coordinates(axis)])
        return keys

    def _find_changes(self) -> None:
        """Bisect between differing ranks until each change along an axis is between two neighbors."""
        self._trace_along(self._ends_of_axes())
        gaps = [(axis, gap) for axis in self.axes for gap in self._gaps(axis)]
        self._trace_along(self._rank_at(axis, at) for axis, (low, high) in gaps for at in (low + 1, high - 1))
        while gaps := [(axis, gap) for axis in self.axes for gap in self._gaps(axis)]:
            self._trace_along(self._rank_at(axis, (low + high) // 2) for axis, (low, high) in gaps)

    def _trace_along(self, ranks: Iterable[int]) -> None:
        """Run ranks on a line through the base rank, which differ because of one axis alone."""
        ranks = list(ranks)
        self._along.update(ranks)
        self._trace(ranks)

    def _gaps(self, axis: Axis) -> list[tuple[int, int]]:
        """Return pairs of coordinates of ranks that were run and differ, with coordinates of other ranks in between."""
        traced = self._traced_along(axis)
        return [(low, high) for (low, before), (high, other) in pairwise(traced) if high - low > 1 and before != other]

    def _traced_along(self, axis: Axis) -> list[tuple[int, str]]:
        """Return (coordinate, digest) of the ranks that were run on an axis through the base rank."""
        coordinates = ((at, self._rank_at(axis, at)) for at in range(axis.size))
        return [(at, self.outcomes[rank].digest) for at, rank in coordinates if rank in self._along]

    def _classes_along(self, axis: Axis) -> list[int]:
        """Return the class of each coordinate: that of the nearest rank that was run, at or below it."""
        numbers: dict[str, int] = {}
        digests = dict(self._traced_along(axis))
        classes, current = [], 0
        for at in range(axis.size):
            if at in digests:
                current = numbers.setdefault(digests[at], len(numbers))
            classes.append(current)
        return classes

    def _typical(self, keys: Numbers) -> Numbers:
        """Return, for each rank, the one that represents it according to the axes alone."""
        self._trace_representatives(keys)
        representatives = self._representatives(keys)
        return np.array([representatives[key] for key in keys.tolist()])

    def _trace_representatives(self, keys: Numbers) -> None:
        """Run a rank for each key without one: the rank nearest to the base rank."""
        representatives = self._representatives(keys)
        nearest = []
        for key in np.unique(keys).tolist():
            if key not in representatives:
                members = np.flatnonzero(keys == key)
                nearest.append(int(members[np.argmin(self._distance[members])]))
        self._trace(nearest)

    def _representatives(self, keys: Numbers) -> dict[int, int]:
        """Return {key: of the ranks that were run with this key, the one nearest to the base rank}."""
        representatives: dict[int, int] = {}
        for rank in sorted(self.outcomes, key=lambda rank: (int(self._distance[rank]), rank)):
            representatives.setdefault(int(keys[rank]), rank)
        return representatives

    def _tests_that_matter(self, tests: Sequence[RankTest], typical: Numbers) -> list[RankTest]:
        """Return the conditions that explain why ranks differ from their typical ranks.

        Only conditions that are true for one and false for the other are tested, on the first and last such rank.
        """
        ends: list[tuple[RankTest, int]] = []
        for test in tests:
            holds = np.array(test.holds)
            other = np.flatnonzero(holds != holds[typical])
            if len(other):
                ends += [(test, int(other[0])), (test, int(other[-1]))]
        self._trace(rank for _, rank in ends)
        matter: dict[tuple[bool, ...], RankTest] = {}
        for test, rank in ends:
            if self.outcomes[rank].digest != self.outcomes[int(typical[rank])].digest:
                matter.setdefault(test.holds, test)  # conditions of the program come before the usual ones
        return self._fewest(list(matter.values()), typical)

    def _fewest(self, tests: Sequence[RankTest], typical: Numbers) -> list[RankTest]:
        """Return the conditions needed to explain the differences between ranks that were run, rarest first."""
        needed: list[RankTest] = []
        unexplained = {
            rank
            for rank, outcome in self.outcomes.items()
            if outcome.digest != self.outcomes[int(typical[rank])].digest
        }
        for test in sorted(tests, key=_rarity):
            explained = {rank for rank in unexplained if test.holds[rank] != test.holds[int(typical[rank])]}
            if explained:
                needed.append(test)
                unexplained -= explained
        return needed

    def _keys_by_shards(self, keys: Numbers) -> Numbers:
        """Split the keys by sizes of shards, run a rank for each new key, and return the keys."""
        numbers = np.zeros(self.world_size, dtype=np.int64)
        for key, rank in self._representatives(keys).items():
            members = np.flatnonzero(keys == key)
            numbers[members] = ranks_by_shapes(self.outcomes[rank].shapes, members)
        keys = _joined(keys, numbers)
        self._trace_representatives(keys)
        return keys

    def _classes(self, keys: Numbers, tests: Sequence[RankTest], matter: Collection[RankTest]) -> Distinct:
        """Return the classes of ranks.

        Args:
            keys: a key per rank, equal for ranks that are expected to do the same.
            tests: all conditions on the rank.
            matter: the conditions that make a difference.
        """
        representatives = self._representatives(keys)
        unexplained: dict[int, int] = {}
        for rank, outcome in self.outcomes.items():
            representative = representatives[int(keys[rank])]
            if outcome.full_digest != self.outcomes[representative].full_digest:
                unexplained[rank] = representative
        first: dict[str, int] = {}
        for rank in representatives.values():  # ranks with different keys may do the same
            first.setdefault(self.outcomes[rank].full_digest, rank)
        members: dict[int, list[int]] = {}
        for rank, key in enumerate(keys.tolist()):
            representative = rank if rank in unexplained else first[self.outcomes[representatives[key]].full_digest]
            members.setdefault(representative, []).append(rank)
        differing = [axis.name for axis in self.axes if axis in self._differing]
        others = [axis.name for axis in self.axes if axis not in self._differing]
        return Distinct(
            classes=tuple(RankClass(rank, tuple(ranks)) for rank, ranks in sorted(members.items())),
            traced=tuple(sorted(self.outcomes)),
            differ=(*differing, *(_text(test) for test in matter)),
            without_effect=(
                *others,
                *(_text(test) for test in tests if test not in matter and test.where),
            ),
            unexplained=tuple(sorted(unexplained.items())),
        )


def _rarity(test: RankTest) -> int:
    """Return the number of ranks on the rarer side of a condition."""
    return min(sum(test.holds), len(test.holds) - sum(test.holds))


def _text(test: RankTest) -> str:
    """Return a condition as notes name it: ``"`rank == 1` (train.py:31)"``."""
    return f"`{test.text}` ({test.where})" if test.where else test.text


def _joined(keys: Numbers, more: Numbers) -> Numbers:
    """Return a new key for each distinct pair of keys."""
    joined: Numbers = np.unique(np.stack([keys, more]), axis=1, return_inverse=True)[1].reshape(-1)
    return joined
