"""What overlaps, and what the compute stream waits for: exact seconds of small programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.rank_program import Collective, Item, Kernels, Sync, Wait
from dsexplore._internal.cost.step.stream_simulation import SimulatedStep, play


def kernels(seconds: float, phase: str = "forward", host: float = 0.0) -> Kernels:
    return Kernels((seconds, seconds, seconds), (host, host, host), "m", phase, "matmul")


def collective(
    seq: int,
    seconds: float,
    sync: Sync = "async",
    phase: str = "forward",
    op: str = "all_gather",
    stream: str = "s",
    host: float = 0.0,
) -> Collective:
    link = f"link of {stream}"
    return Collective(seq, (seconds,) * 3, stream, link, sync, "m", phase, op, "dp", 1, host=(host,) * 3)


def run(*items: Item, slowdown: float = 0.0, overlap: bool = True) -> SimulatedStep:
    return play(list(items), Estimate.EXPECTED, slowdown, overlap)


def test_what_is_waited_for_at_once_is_exposed() -> None:
    played = run(kernels(1), collective(0, 2, "wait"), kernels(1))
    assert (played.seconds, played.exposed, played.compute) == (4, 2, 2)


def test_what_is_waited_for_later_hides_behind_kernels() -> None:
    played = run(collective(0, 2), kernels(1.5), Wait(0), kernels(1))
    assert (played.seconds, played.exposed) == (3, 0.5)


def test_short_collectives_wait_for_the_cpu_that_issues_them() -> None:
    played = run(*(collective(seq, 1, "wait", host=3) for seq in range(4)))
    assert (played.seconds, played.idle, played.exposed) == (4 * 3 + 1, 3 + 3 * 2, 4)


def test_issuing_hides_behind_kernels_that_run() -> None:
    played = run(kernels(10), collective(0, 1, "wait", host=3), kernels(10))
    assert (played.seconds, played.idle) == (21, 0)


def test_what_nobody_waits_for_is_over_at_the_end() -> None:
    assert run(kernels(1), collective(0, 3)).seconds == 4


def test_gathers_of_fsdp_are_one_layer_ahead() -> None:
    """Layers that compute 2 s and gather 1 s: the first gather alone is exposed."""
    items: list[Item] = []
    for layer in range(4):
        items += [collective(layer, 1, "fsdp gather"), Wait(layer), kernels(2)]
    assert run(*items).exposed == 1


def test_slow_gathers_of_fsdp_bound_the_step() -> None:
    items: list[Item] = []
    for layer in range(4):
        items += [collective(layer, 3, "fsdp gather"), Wait(layer), kernels(2)]
    assert run(*items).seconds == 4 * 3 + 2


def test_one_reduction_of_fsdp_is_in_flight() -> None:
    """Reductions of 3 s after kernels of 1 s: each waits for the one before, and the optimizer for the last."""
    items: list[Item] = []
    for layer in range(3):
        items += [kernels(1, "backward"), collective(layer, 3, "fsdp reduce", "backward", "reduce_scatter")]
    assert run(*items, kernels(1, "optimizer")).seconds == 1 + 3 * 3 + 1


def test_buckets_of_ddp_are_waited_for_at_the_end_of_backward() -> None:
    played = run(
        kernels(1, "backward"),
        collective(0, 1, "ddp"),
        kernels(2, "backward"),
        collective(1, 1, "ddp"),
        kernels(1, "optimizer"),
    )
    assert (played.seconds, played.exposed) == (5, 1)


def test_two_collectives_on_one_link_take_as_long_as_one_after_the_other() -> None:
    items = [collective(0, 2, stream="a"), collective(1, 2, stream="b")]
    apart = run(*items)
    shared = run(*(Collective(**{**{n: getattr(i, n) for n in i.__slots__}, "link": "node"}) for i in items))
    assert (apart.seconds, shared.seconds) == (2, 4)


def test_kernels_beside_a_collective_are_slower() -> None:
    assert run(collective(0, 10), kernels(2), slowdown=0.25).compute == pytest.approx(2.5)


def test_the_cpu_bounds_small_kernels() -> None:
    played = run(*(kernels(1, host=3) for _ in range(4)))
    assert (played.seconds, played.idle) == (12, 8)


_items = st.lists(
    st.one_of(
        st.builds(kernels, st.floats(0, 3), st.sampled_from(["forward", "backward", "optimizer"]), st.floats(0, 2)),
        st.tuples(st.floats(0, 3), st.sampled_from(["wait", "async", "ddp", "fsdp gather", "fsdp reduce"])),
        st.integers(0, 20),
    ),
    max_size=25,
)


@given(items=_items, slowdown=st.floats(0, 0.3), overlap=st.booleans())
def test_compute_exposed_and_idle_are_the_step(items: list[object], slowdown: float, overlap: bool) -> None:
    program: list[Item] = []
    for number, item in enumerate(items):
        if isinstance(item, Kernels):
            program.append(item)
        elif isinstance(item, tuple):
            op = "reduce_scatter" if item[1] == "fsdp reduce" else "all_gather"
            program.append(collective(number, item[0], item[1], op=op))
        else:
            program.append(Wait(int(item)))  # type: ignore[call-overload] # an integer
    played = run(*program, slowdown=slowdown, overlap=overlap)
    assert played.compute + played.exposed + played.idle == pytest.approx(played.seconds)
    ends = [span.end for span in played.spans if span.stream == "compute"]
    starts = [span.start for span in played.spans if span.stream == "compute"]
    assert all(start >= end - 1e-9 for end, start in zip(ends, starts[1:], strict=False))
    assert max([*(span.end for span in played.spans), 0.0]) <= played.seconds + 1e-9
