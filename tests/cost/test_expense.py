"""GPU-hours, energy and money: of all ranks, and only where the hardware file has a power and a price."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsexplore import UsageError
from dsexplore._internal.cost.cluster_file import Price, parse_price
from dsexplore._internal.cost.expense import Expense, expense_of
from dsexplore._internal.cost.meshes.mesh_comparison import MeshCandidate, MeshComparison
from dsexplore._internal.trace.trace import Trace
from dsexplore.cost import Cluster, Range

PRICED = 'title = "mine"\nbase = "dgx-h100"\nprice = "2.50 USD/h"\npower = "500 W"\n[network]\nachievable = 0.97\n'


@pytest.fixture
def priced(tmp_path: Path) -> Cluster:
    path = tmp_path / "mine.toml"
    path.write_text(PRICED, encoding="utf-8")
    return Cluster.load(path)


def test_all_ranks_take_their_hours_power_and_price(priced: Cluster) -> None:
    spent = expense_of(Range(1800.0, 3600.0, 7200.0), 16, priced)
    assert spent.gpu_hours == Range(8.0, 16.0, 32.0, unit="")
    assert spent.energy == Range(4.0, 8.0, 16.0, unit="")
    assert spent.money == Range(20.0, 40.0, 80.0, unit="")
    assert str(spent) == "16 GPU-hours, up to 8 kWh, 40 USD"


def test_what_no_file_says_is_not_made_up() -> None:
    bare = replace(Cluster.load("dgx-h100"), power=None)
    assert expense_of(Range.exactly(3600.0), 2, bare) == Expense(Range.exactly(2.0, ""))
    assert expense_of(Range.exactly(3600.0), 2, Cluster.load("gloo-local")).energy is None
    assert bare.price is None


def test_a_step_and_a_comparison_of_meshes_say_what_they_take(
    traced_llama: Callable[..., Trace], priced: Cluster
) -> None:
    prediction = traced_llama("dp=4,tp=2").predict(priced)
    one, thousand = prediction.expense(), prediction.expense(1000)
    assert one.gpu_hours.expected == pytest.approx(prediction.step.expected * 8 / 3600)
    assert thousand.money is not None
    assert thousand.money.expected == pytest.approx(2.5 * 1000 * one.gpu_hours.expected)
    assert [note for note in prediction.notes if note == f"a step of all 8 ranks takes {one}"]
    assert not [note for note in prediction.what_if(hardware="dgx-h100").notes if "GPU-hours" in note]
    compared = MeshComparison(
        priced, [MeshCandidate({"dp": 4, "tp": 2}, prediction), MeshCandidate({"dp": 8}, None, "left out")]
    )
    frame = compared.to_frame()
    assert one.money is not None
    assert frame["money"].to_list() == [one.money.expected, None]
    assert frame["gpu_hours"][0] == one.gpu_hours.expected
    assert str(one) in compared._repr_mimebundle_()["text/plain"]
    with pytest.raises(UsageError, match="steps=0 is not a number of steps"):
        prediction.expense(0)


@pytest.mark.parametrize("text", ["2.5", "2.5 USD", "2.5 usd/h", "-1 USD/h", "USD/h", "1.2.3 USD/h", 2.5])
def test_a_price_is_a_number_a_currency_and_an_hour(text: object) -> None:
    assert parse_price("1.99 EUR/h") == Price(1.99, "EUR")
    with pytest.raises(ValueError, match="is not a price"):
        parse_price(text)
