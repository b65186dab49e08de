"""What `CommsLogger.log_all` prints and returns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import torch.distributed as td

from dsexplore.comm.groups import is_initialized
from dsexplore.comm.records import Record
from dsexplore.comm.straggler import StragglerReport, gather_logs, rank_log, straggler_report
from dsexplore.comm.summary import CommsSummary, operation_summaries


def report(
    records: Sequence[Record], print_log: bool, show_straggler: bool, return_dict: bool
) -> dict[str, Any] | None:
    """Print the log, return it as a dict, or both; see `CommsLogger.log_all`."""
    rank, world_size = (td.get_rank(), td.get_world_size()) if is_initialized() else (0, 1)
    stragglers: StragglerReport | None = None
    if show_straggler:
        logs = gather_logs(records) if is_initialized() else [rank_log(records, rank)]
        stragglers = straggler_report(logs)
    if print_log:
        print(CommsSummary(records).text())
        if stragglers is not None:
            print(stragglers.text())
    if not return_dict:
        return None
    return {
        "summary": operation_summaries(records),
        "straggler_analysis": None if stragglers is None else stragglers.by_name(rank),
        "differences": None if stragglers is None else list(stragglers.differences),
        "metadata": {"world_size": world_size, "rank": rank, "timestamp": datetime.now().astimezone().isoformat()},
    }
