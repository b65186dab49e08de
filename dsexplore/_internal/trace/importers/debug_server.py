"""Read the flight recorder and the stack of each rank of a running job, through torch's debug server.

``torch.distributed.debug.start_debug_server`` runs one server per rank, and on rank 0 web pages that query all of them.
Outside the job only the address of the pages is known, so the pages are parsed: each has a heading per rank, followed
by the answer of that rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.dumps import Dumps
from dsexplore._internal.trace.importers.recorder_dump import dump_of

_RECORDERS = ("fr_trace_nccl_json", "fr_trace_json")
"""Pages of the flight recorders of NCCL, which includes collectives in flight, and of other libraries."""
_STACKS = "stacks"
_ANSWER = re.compile(
    r"<h2>Rank (\d+): [^<]*</h2>\s*(?:<p>Failed to fetch: status=(\d+)</p>\s*)?<pre>(.*?)</pre>"
    r"\s*(?=<h2>Rank|</section>)",
    re.DOTALL,
)
_TIMEOUT = 90.0
"""Timeout of a page in seconds; the server itself waits up to 60 s for each rank."""

Get = Callable[[str], str]


@dataclass(frozen=True)
class DebugServer:
    """The flight recorders and stacks of a job's ranks, as torch's debug server returned them."""

    dumps: Dumps
    stacks: Mapping[int, str]
    """{rank: frames of its main thread, innermost call first}."""


def is_address(source: object) -> bool:
    """Return True if `source` is a web address rather than a file."""
    return isinstance(source, str) and source.startswith(("http://", "https://"))


def read_debug_server(address: str, get: Get | None = None) -> DebugServer:
    """Fetch the flight recorders and stacks of all ranks from torch's debug server.

    Args:
        address: address of its pages, ``http://HOST:25999``.
        get: function that returns the text of a page; None to read it from the network.

    Raises:
        TraceFileError: no page can be read, or no rank records its collectives.
    """
    fetch = get or _fetch
    base = address.rstrip("/")
    for page in _RECORDERS:
        answers = {rank: _recorded(answer) for rank, answer in _answers(fetch(f"{base}/{page}")).items()}
        if any(content and content.get("entries") for _, content in answers.values()):
            break
    else:
        raise TraceFileError(
            f"no rank of {address} records its collectives: start the job with TORCH_FR_BUFFER_SIZE=2000 (NCCL: "
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000)"
        )
    dumps, problems = [], []
    for rank in sorted(answers):
        problem, content = answers[rank]
        if content is None:
            problems.append(f"rank {rank} did not answer {base}/{page}: {problem}")
        else:
            dumps.append(dump_of(Path(f"rank {rank} of {base}"), content, rank))
    pages_of_stacks = _answers(fetch(f"{base}/{_STACKS}"))
    stacks = {rank: _main_thread(text) for rank, (status, text) in pages_of_stacks.items() if not status}
    return DebugServer(Dumps(tuple(dumps), tuple(problems)), stacks)


def _fetch(url: str) -> str:
    """Return the text of a page.

    Raises:
        TraceFileError: the server does not answer, or with an error.
    """
    try:
        with urlopen(url, timeout=_TIMEOUT) as opened:  # the user's own address, http or https
            text: str = opened.read().decode(errors="replace")
            return text
    except HTTPError as error:
        reason = f"status {error.code}"
    except (URLError, OSError) as error:
        reason = str(getattr(error, "reason", error))
    raise TraceFileError(
        f"{url} does not answer ({reason}): give the address of torch's debug server, http://HOST:25999, where HOST "
        "runs rank 0 and the program has called torch.distributed.debug.start_debug_server()"
    )


def _answers(page: str) -> dict[int, tuple[str, str]]:
    """Return {rank: (HTTP status of a failed answer, else empty; text of the answer)}."""
    return {int(rank): (status, text) for rank, status, text in _ANSWER.findall(page)}


def _recorded(answer: tuple[str, str]) -> tuple[str, dict[str, Any] | None]:
    """Return ``("", content)`` of a flight recorder from a rank's answer; ``(reason, None)`` if it has none."""
    status, text = answer
    if status:
        return f"status {status}, {text.strip().partition(chr(10))[0]}", None
    try:
        content = json.loads(text)
    except ValueError as error:
        return str(error), None
    return ("", content) if isinstance(content, dict) else ("it is not a dump", None)


def _main_thread(text: str) -> str:
    """Return the frames of the main thread, which Python writes last."""
    frames = re.split(r"(?m)^(?:Current t|T)hread .*\n", text)[-1]
    return "\n".join(line for line in frames.splitlines() if line.startswith("  File "))
