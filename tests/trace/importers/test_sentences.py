"""Every sentence that a reader of profiles or logs can say: a file for which it is true, and one for which it is not.

Modules: ``trace/importers/profiler_notes.py``, ``trace/importers/profiler_groups.py``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsexplore._internal.trace.importers import execution_trace, inspector_log, profiler_groups, profiler_notes
from dsexplore._internal.trace.trace import load
from tests.trace.importers.test_other_tools import COLLECTIVE, line, log_of, node
from tests.trace.importers.test_other_tools import execution_trace as written_execution_trace
from tests.trace.importers.test_profiles import NEW, event

READERS = (profiler_notes, profiler_groups, inspector_log, execution_trace)
GATHER = {**event("ncclDevKernel_AllGather_RING_LL(x)", ts=500), "args": NEW}
DESCRIBED = event("record_param_comms", "cpu_op", ts=500, tid=3, **NEW)
UNSIZED = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts=500, Group_size=8)
UNTYPED = {**GATHER, "args": {**NEW, "dtype": ""}}
MARK = event("ProfilerStep#1", "user_annotation", ts=0, dur=900, tid=3)
LAUNCH = event("cudaLaunchKernel", "cuda_runtime", ts=100, tid=3, correlation=7)
LAUNCHED = {**GATHER, "args": {**NEW, "correlation": 7}}
GENERIC = event("ncclDevKernel_Generic(x)", ts=500)
TIMES = {"times": [(1_748_030_377_748_202, 1_748_030_377_748_302)]}
GROUPS = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": [0]}]}


def profile(*events: dict[str, Any], damage: bool = False, **info: Any) -> bytes:
    known = {"rank": 0, "world_size": 8, **info}
    text = json.dumps({"distributedInfo": known, "traceEvents": [*events, MARK | {"name": "end"}]})
    return (text.replace('"gemm"', '"gemm" "') if damage else text).encode()


CASES: dict[str, tuple[bytes, bytes]] = {
    "has no collectives: none of its kernels communicates": (profile(event("gemm")), profile(GATHER)),
    "has neither kernels nor works of its collectives": (profile(DESCRIBED), profile(GATHER)),
    "1 damaged event left out": (
        profile(*[GATHER] * 3, {**GENERIC, "name": "gemm", "args": NEW}, damage=True),
        profile(GATHER),
    ),
    "communicates in 1 call, 10 µs together: the file does not say": (profile(GENERIC), profile(GATHER)),
    "further kernel of such kinds": (
        profile(*(event(f"nvshmem_{i}(x)", ts=i) for i in range(9))),
        profile(*(event(f"nvshmem_{i}(x)", ts=i) for i in range(8))),
    ),
    "has no launch of 1 collective, queued before": (profile(MARK, LAUNCH, GATHER), profile(MARK, LAUNCH, LAUNCHED)),
    "does not say the size of 1 of its collectives": (profile(UNSIZED), profile(GATHER)),
    "does not say the dtype of 1 of its collectives": (profile(UNTYPED), profile(GATHER)),
    "names no groups: its collectives are taken to be of all 8 ranks": (profile(GENERIC), profile(GENERIC, **GROUPS)),
    "does not say how many ranks 1 of its collectives have": (profile(GENERIC, **GROUPS), profile(UNSIZED, **GROUPS)),
    "1 damaged line left out": (log_of(line(), line(), cut=9), log_of(line())),
    "does not name the rank of 1 collective, left out here": (
        log_of(line(rank=0), line(rank=1), line(ranks=1, id="0x9")),
        log_of(line(rank=0), line(ranks=1, id="0x9")),
    ),
    "lacks 1 collective between those that it has": (log_of(line(), line(number=3)), log_of(line(), line(number=2))),
    "took, 250 µs together, but not when": (log_of(line()), log_of(line(**TIMES))),
    "is an execution trace: it has the order": (
        written_execution_trace(node(12, "record_param_comms", 2, **COLLECTIVE)),
        profile(GATHER),
    ),
}


def notes_of(folder: Path, content: bytes) -> tuple[str, ...]:
    (folder / "rank0.json").write_bytes(content)
    return load(folder / "rank0.json").info.notes


@pytest.mark.parametrize("sentence", CASES)
def test_a_sentence_is_said_where_it_is_true_and_nowhere_else(tmp_path: Path, sentence: str) -> None:
    so, not_so = CASES[sentence]
    assert any(sentence in note for note in notes_of(tmp_path, so))
    words = max(re.split(r"\d+", sentence), key=len)
    assert not any(words in note for note in notes_of(tmp_path, not_so))


def sentences_of(module: ModuleType) -> Iterator[str]:
    """Yield the longest fixed part of each sentence that a module yields."""
    for found in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
        if isinstance(found, ast.Yield) and isinstance(found.value, ast.JoinedStr):
            yield max((part.value for part in found.value.values if isinstance(part, ast.Constant)), key=len)


def test_every_sentence_has_a_case(tmp_path: Path) -> None:
    said = [note for so, _ in CASES.values() for note in notes_of(tmp_path, so)]
    parts = [part for module in READERS for part in sentences_of(module)]
    assert len(parts) > 10
    assert [part for part in parts if len(part) > 3 and not any(part in note for note in said)] == []
