"""What is said to make a step's range wide is what does: without its error, the range narrows more than without others.

Modules: ``cost/step/range_causes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.range import Estimate
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.cost.step.rank_program import Item, Kernels, Options, Wait, programs
from dsexplore._internal.cost.step.stream_simulation import play
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views import view_of

HARDWARE = ("dgx-h100", "dgx-a100", "8xl40s", "gcp-a3-mega", "gb200-nvl72", "gloo-local")
FAST_CPU = replace(Cluster.load("dgx-h100"), launch_overhead=0.0)


@pytest.fixture(scope="module")
def traces(traced_llama: Callable[..., Trace], traced_layers: Callable[..., Trace]) -> list[Trace]:
    """Tensor parallelism with FSDP in a node and across nodes, and large products alone."""
    return [traced_llama("dp=4,tp=2"), traced_llama("dp=16,tp=4"), traced_layers(3, width=4096, rows=32768, dp=1)]


def predictions(traces: list[Trace]) -> Iterator[Prediction]:
    for trace in traces:
        for name in HARDWARE:
            cluster = Cluster.load(name)
            if cluster.network is not None or trace.tables.info.world_size <= cluster.ranks_per_domain:
                yield trace.predict(cluster)
        yield trace.predict(FAST_CPU)


def test_parts_sum_to_both_ends_of_the_range(traces: list[Trace]) -> None:
    for prediction in predictions(traces):
        causes, step = prediction.by_cause(), prediction.step
        for end in ("low", "expected", "high"):
            assert causes[end].sum() == pytest.approx(getattr(step, end))
        assert causes["share"].sum() == pytest.approx(1)
        assert causes["share"].is_sorted(descending=True)
        assert causes["what"][0] == prediction.widest_part


def without_range(items: list[Item], part: str) -> list[Item]:
    """Return the program whose times of one part are exactly as expected."""

    def exactly(times: tuple[float, float, float]) -> tuple[float, float, float]:
        return (times[1],) * 3

    kinds = {"matmul": "matrix products", "attention": "attention", "memory": "kernels that move bytes"}
    done: list[Item] = []
    for item in items:
        if not isinstance(item, Wait) and part == "waiting for the CPU":
            item = replace(item, host=exactly(item.host))
        elif not isinstance(item, Wait):
            own = kinds.get(item.kind) if isinstance(item, Kernels) else f"exposed {item.op} of {item.axis}"
            item = replace(item, seconds=exactly(item.seconds)) if part == own else item
        done.append(item)
    return done


def test_without_the_error_of_the_part_that_is_named_the_range_narrows_most(traces: list[Trace]) -> None:
    clear = 0
    for prediction in predictions(traces):
        causes = prediction.by_cause()
        waiting = causes.filter(what="waiting for the CPU")["share"].sum()
        if 0.1 < waiting < causes["share"][0]:
            continue  # the GPU waits for the CPU at the high end alone, which hides how long its kernels take there
        clear += 1
        (items,) = (program.items for program in programs(prediction.tables, prediction.cluster, Options()))
        widths = {}
        for part in causes["what"]:
            slowdown, overlap = prediction._ranks[0]._how
            low, _, high = (play(without_range(items, part), end, slowdown, overlap).seconds for end in Estimate)
            widths[part] = high - low
        assert min(widths, key=lambda part: widths[part]) == prediction.widest_part
    assert clear >= 19
    assert len({prediction.widest_part for prediction in predictions(traces)}) >= 3


def test_a_network_that_nobody_measured_is_named_where_it_is_the_widest_part(
    traced_layers: Callable[..., Trace],
) -> None:
    prediction = traced_layers(3, width=8192, rows=64, dp=64).predict(FAST_CPU)
    assert prediction.widest_part == "exposed all_gather of dim_0"
    assert prediction.step.why.endswith(": all_gather between nodes was never measured on a network like this")


def test_a_step_without_error_has_no_cause(traced_layers: Callable[..., Trace]) -> None:
    prediction = traced_layers(1, dp=1).predict(FAST_CPU)
    prediction._ranks[0].played = lambda _estimate: play([], Estimate.EXPECTED, 0.0)  # type: ignore[method-assign] # a step of nothing
    assert prediction.step.why == prediction.widest_part == ""
    assert prediction.by_cause().is_empty()
    assert "Widest part" not in view_of(prediction).text()


def test_the_view_says_it_in_a_sentence_and_has_the_parts_as_a_table(traces: list[Trace]) -> None:
    for prediction in (traces[0].predict("8xl40s"), traces[1].predict()):
        shown = prediction._repr_mimebundle_()
        assert f"Widest part of the range: {prediction.step.why}." in shown["text/plain"]
        assert "Widest part of the range: " in shown["text/html"]
        table = shown["text/html"].partition("Causes of the range of the step")[2]
        assert all(part in table for part in prediction.by_cause()["what"])
