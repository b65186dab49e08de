"""Beside each line of a rank's log: how long it waited in those calls, and for which ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from dsexplore.comm.log_records import Record
from dsexplore.comm.log_summary import LineKey, Waiting, line_key
from dsexplore.comm.rank_logs import Key, numbered
from dsexplore.comm.straggler import StragglerReport, late_ranks


def waiting_of_lines(
    records: Iterable[Record], dropped: Mapping[Key, int], report: StragglerReport, rank: int
) -> dict[LineKey, Waiting]:
    """How long each line of a rank's summary waited; a line of which no call was found on all ranks is left out.

    Args:
        records: the rank's own; see `numbered`.
        dropped: see `numbered`.
        report: of all ranks' logs.
        rank: whose records these are.
    """
    seen = {
        key: (matched.first, matched.waits[matched.ranks.index(rank)], late_ranks(matched.shortest, matched.waits))
        for key, matched in report.matched.items()
        if rank in matched.ranks
    }
    found: dict[LineKey, Waiting] = {}
    for key, number, record in numbered(records, dropped):
        if key not in seen:
            continue
        first, waits, late = seen[key]
        call = number - first
        if 0 <= call < len(waits) and not np.isnan(waits[call]):
            line = found.setdefault(line_key(record), Waiting())
            line.count += 1
            line.seconds += float(waits[call])
            ranks = report.matched[key].ranks
            line.late.update(ranks[row] for row in np.flatnonzero(late[:, call]).tolist())
    return found
