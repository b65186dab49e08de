"""How well `compare_numerics` tells plans with one fault from right ones, and names the place and the reason.

Bounds: of 34 faulty plans of ten kinds the place is right in 32 and the reason in 28, as of 30 in 28 and 24; of the
other sets, the place in 9 of 10 and the reason in 4 of 5; no alarm in any right plan. The set ``further`` has other
models and frameworks' ways; ``outsider`` was written by somebody who had not read the rules; ``later`` has dropout that
parts otherwise than by seed, pools, packed documents and stages in turn. Some of the plans restate faults of public
trackers, whose addresses are printed.

Usage: python benchmarks/numerics_plans.py [--set first|further|outsider|later] [NAME …]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from dsexplore import NumericsReport, compare_numerics
from dsexplore._internal.mesh import parse_mesh
from tests.numerics.further_right_plans import FURTHER_RIGHT_PLANS
from tests.numerics.further_wrong_plans import FURTHER_WRONG_PLANS
from tests.numerics.later_right_plans import LATER_RIGHT_PLANS
from tests.numerics.later_wrong_plans import LATER_WRONG_PLANS
from tests.numerics.outsider_right_plans import OUTSIDER_RIGHT_PLANS
from tests.numerics.outsider_wrong_plans import OUTSIDER_WRONG_PLANS
from tests.numerics.right_plans import RIGHT_PLANS
from tests.numerics.wrong_plans import WRONG_PLANS

SETS: dict[str, tuple[Any, Any]] = {
    "first": (WRONG_PLANS, RIGHT_PLANS),
    "further": (FURTHER_WRONG_PLANS, FURTHER_RIGHT_PLANS),
    "outsider": (OUTSIDER_WRONG_PLANS, OUTSIDER_RIGHT_PLANS),
    "later": (LATER_WRONG_PLANS, LATER_RIGHT_PLANS),
}


def compared(plan: Any) -> tuple[NumericsReport, float]:
    """Compare a plan, and take the time."""
    began = time.perf_counter()
    report = compare_numerics(
        plan.reference, plan.parallel, mesh=plan.mesh, world_size=parse_mesh(plan.mesh).size, steps=2
    )
    return report, time.perf_counter() - began


def main() -> None:
    """Print a line for each plan, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=SETS, default="first", help="of plans")
    parser.add_argument("names", nargs="*", help="of plans; all without any")
    options = parser.parse_args()
    wrong, right = (
        [plan for plan in plans if not options.names or plan.name in options.names] for plans in SETS[options.set]
    )
    places = reasons = alarms = 0
    for plan in wrong:
        report, seconds = compared(plan)
        place = report.module in plan.places and report.phase == plan.phase
        reason = report.reason == plan.reason
        places, reasons = places + place, reasons + reason
        verdict = f"place {'ok' if place else 'WRONG'}, reason {'ok' if reason else 'WRONG'}"
        print(
            f"{plan.reason:18} {plan.name:28} {seconds:4.1f} s  {verdict}  {report.verdict()} {plan.source}", flush=True
        )
    for plan in right:
        report, seconds = compared(plan)
        alarms += not report.same
        print(f"{'right':18} {plan.name:28} {seconds:4.1f} s  {report.verdict()}", flush=True)
    print(f"place right in {places}, reason right in {reasons} of {len(wrong)}; {alarms} alarms in {len(right)} plans")


if __name__ == "__main__":
    main()
