"""`Expense`: GPU-hours of a job's steps, the energy that its GPUs may take meanwhile, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.range import Range

_HOUR = 3600.0


@dataclass(frozen=True)
class Expense:
    """What all ranks of a job take together.

    Attributes:
        gpu_hours: hours of all ranks, whether they compute or wait.
        energy: upper bound in kWh: the GPUs alone, without hosts, network and cooling, at the maximum power of their
            data sheet; None where the cluster's file has no ``power``.
        money: price in `currency`; None where the cluster's file has no ``price``.
        currency: ``"USD"``; empty without a price.
    """

    gpu_hours: Range
    energy: Range | None = None
    money: Range | None = None
    currency: str = ""

    def __str__(self) -> str:
        """Format the expected values: ``"0.002 GPU-hours, up to 0.0014 kWh, 0.005 USD"``."""
        parts = [f"{self.gpu_hours.expected:.3g} GPU-hours"]
        if self.energy is not None:
            parts.append(f"up to {self.energy.expected:.3g} kWh")
        if self.money is not None:
            parts.append(f"{self.money.expected:.3g} {self.currency}")
        return ", ".join(parts)


def expense_of(seconds: Range, ranks: int, cluster: Cluster) -> Expense:
    """Return GPU hours, energy and price of a number of ranks over a time.

    Args:
        seconds: how long the ranks run.
        ranks: number of ranks of the job.
        cluster: cluster that they run on; its file gives power and price.

    Examples:
        >>> print(expense_of(Range.exactly(1800.0), 8, Cluster.load("dgx-h100")))
        4 GPU-hours, up to 2.8 kWh
    """
    low, expected, high = (end * ranks / _HOUR for end in (seconds.low, seconds.expected, seconds.high))
    hours = Range(low, expected, high, unit="")
    price = cluster.price
    return Expense(
        gpu_hours=hours,
        energy=hours * (cluster.power / 1e3) if cluster.power is not None else None,
        money=hours * price.per_hour if price is not None else None,
        currency=price.currency if price is not None else "",
    )
