"""Write the page of the tables' columns: names, types and the comments that stand beside them in the sources."""

from __future__ import annotations

import ast
import io
import tokenize
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import polars as pl


class Table(NamedTuple):
    """A table that users get.

    Attributes:
        title: how a user asks for it.
        module: the module that defines its columns.
        name: the name of the mapping of columns there.
        row: what one row is.
    """

    title: str
    module: str
    name: str
    row: str


TABLES = (
    Table("trace.events", "dsexplore._internal.trace.schema", "EVENTS", "one collective or message of one rank"),
    Table("trace.parameters", "dsexplore._internal.trace.schema", "PARAMETERS", "one parameter on one rank"),
    Table("trace.modules", "dsexplore._internal.trace.schema", "MODULES", "one module"),
    Table("trace.groups", "dsexplore._internal.trace.schema", "GROUPS", "one process group"),
    Table(
        "trace.kernels",
        "dsexplore._internal.trace.schema",
        "KERNELS",
        "one kind of op between two collectives (costs=True)",
    ),
    Table(
        "trace.memory", "dsexplore._internal.trace.schema", "MEMORY", "the memory between two collectives (costs=True)"
    ),
    Table(
        "trace.numerics",
        "dsexplore._internal.trace.schema",
        "NUMERICS",
        "a tensor's summary on one rank (numerics=True)",
    ),
    Table(
        "trace.io",
        "dsexplore._internal.trace.schema",
        "IO",
        "a read, a write or a wait of one rank, besides its collectives",
    ),
    Table(
        "trace.tables.differing", "dsexplore._internal.trace.schema", "DIFFERING", "a tensor that differs (costs=True)"
    ),
    Table("trace.headline().to_frame()", "dsexplore._internal.analysis.traffic", "COLUMNS", "one mesh axis"),
    Table("trace.findings().to_frame()", "dsexplore._internal.analysis.findings.finding", "COLUMNS", "one finding"),
    Table("trace.skew().to_frame()", "dsexplore._internal.analysis.skew", "COLUMNS", "one collective of several ranks"),
    Table("trace.diff(other).to_frame()", "dsexplore._internal.trace.diff", "COLUMNS", "module × op × axis × phase"),
    Table(
        "trace.parameter_history(…).to_frame()",
        "dsexplore._internal.analysis.parameter_history",
        "MOMENTS",
        "one moment",
    ),
    Table(
        "trace.world_map().to_frame()", "dsexplore._internal.analysis.world_map", "LINKS", "rank × axis × level of link"
    ),
    Table(
        "explain_hang(…).waiting",
        "dsexplore._internal.analysis.hangs.hang_report",
        "WAITING_COLUMNS",
        "one rank that waits",
    ),
    Table(
        "explain_hang(…).mismatches",
        "dsexplore._internal.analysis.hangs.hang_report",
        "MISMATCHES",
        "one call that differs",
    ),
    Table(
        "plan.redistribute(…).to_frame()",
        "dsexplore._internal.sharding.redistribution",
        "COLUMNS",
        "one axis that changes",
    ),
    Table(
        "comms_logger.to_frame()",
        "dsexplore._internal.comm.logs.log_summary",
        "COLUMNS",
        "one op of one size in one group",
    ),
)
COMMON = {
    "rank": "the global rank that recorded it",
    "step": "number of the step, from 0",
    "before": "seq of the event that was issued next",
    "segment": "position in program order; segments end at waits",
    "phase": "forward, backward, optimizer, …; see [a step](../steps.md)",
    "module": "module, `Llama.layers.0.attention`",
    "op": "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, …",
    "axis": "mesh axis; empty for a group that is none",
    "group": "name of the process group",
    "group_size": "ranks of the group",
    "ranks": "global ranks of the group",
    "size": "number of its ranks",
    "mesh": "axes with their sizes, `dp=2,tp=4`",
    "dtype": "torch's name without `torch.`",
    "message_bytes": "bytes S of the whole buffer; see [bytes](../concepts/bytes.md)",
    "wire_bytes": "bytes that one rank must send at least",
    "source": "`file:line` of your code",
    "cause": "what asked for it",
    "count": "how many",
    "end": "as start",
    "is_async": "whether the call returned a work that is waited for later",
    "type": "class of the module",
    "global_shape": "shape of the whole tensor",
    "local_shape": "shape on this rank",
    "global_bytes": "bytes of the whole tensor",
    "local_bytes": "bytes on this rank",
    "requires_grad": "whether it has a gradient",
    "number": "position among the collectives of its group, from 0",
    "last_start": "seconds since the first start of the trace",
    "read_bytes": "bytes that these ops read",
    "written_bytes": "bytes that they write",
    "gradients": "bytes, at the same moment",
    "optimizer": "bytes of the optimizer's states, at the same moment",
    "activations": "bytes that backward needs, at the same moment",
    "norm": "root of the sum of its squares",
    "mean": "of its elements",
    "max": "as min",
    "why": "what the trace shows",
    **{
        f"{size}_{when}": f"{words} {which}"
        for size, words in (
            ("count", "collectives"),
            ("message_bytes", "message bytes"),
            ("wire_bytes", "wire bytes"),
        )
        for when, which in (
            ("before", "of the first trace"),
            ("after", "of the second"),
            ("change", "of the second less the first"),
        )
    },
    "after": "the placement that it gets",
    "total_ms": "milliseconds of the timed calls together",
    "mean_ms": "milliseconds of a timed call, mean",
    "min_ms": "of the shortest",
    "max_ms": "of the longest",
    "busbw_gb_per_s": "algbw times the bus factor",
    "peers": "number of other ranks at the end of these links",
}


def write_columns(file: Path) -> None:
    """Write the page."""
    parts = [_table(table) for table in TABLES]
    head = "# Columns of tables\n\nTables are polars frames. Sizes are bytes; times say their unit.\n\n"
    file.write_text(head + "\n\n".join(parts) + "\n", encoding="utf-8")


def _table(table: Table) -> str:
    module = import_module(table.module)
    columns: dict[str, pl.DataType] = getattr(module, table.name)
    comments = _comments(Path(str(module.__file__)), table.name)
    rows = [
        f"| `{column}` | {_type(kind)} | {comments.get(column) or COMMON.get(column, '')} |"
        for column, kind in columns.items()
    ]
    return f"## {table.title}\n\nA row: {table.row}.\n\n| column | type | meaning |\n|---|---|---|\n" + "\n".join(rows)


def _type(kind: pl.DataType) -> str:
    name = str(kind)
    words = {"String": "text", "Boolean": "true or false"}
    return words.get(name, name.replace("List(", "list of ").rstrip(")"))


def _comments(file: Path, name: str) -> dict[str, str]:
    """Return {column: comment} of a mapping of columns; a comment may go on in the lines below."""
    source = file.read_text(encoding="utf-8")
    first, last = _lines_of(source, name)
    tokens = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if first <= token.start[0] <= last
    ]
    found: dict[str, str] = {}
    column = ""
    for token in tokens:
        if token.type == tokenize.STRING and token.line.strip().startswith(token.string):
            column = str(ast.literal_eval(token.string))
        elif token.type == tokenize.COMMENT and column:
            found[column] = f"{found.get(column, '')} {token.string.lstrip('# ')}".strip().replace("|", "\\|")
    return found


def _lines_of(source: str, name: str) -> tuple[int, int]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node.lineno, node.end_lineno or node.lineno
    raise ValueError(f"no mapping {name}")
