"""Traces made of plain tables: small and legible, huge, and hostile."""

from __future__ import annotations

from typing import Any

import polars as pl

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from tests.trace.conftest import DEFAULT

_EVENT = {
    **DEFAULT,
    "axis": "tp",
    "group": "g_tp",
    "message_bytes": 4096,
    "wire_bytes": 6144,
    "shape": [32, 32],
    "source": "train.py:10",
    "is_async": False,
}


def frame(table: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema.TABLES[table]) if rows else schema.empty(table)


def event(owner: str = "", seq: int = 0, **columns: Any) -> dict[str, Any]:
    row = {**_EVENT, "owner": owner, "trigger": owner, "seq": seq, **columns}
    return {name: row[name] for name in schema.EVENTS}


def module(name: str, parent: str = "", kind: str = "Module", depth: int | None = None) -> dict[str, Any]:
    depth = (name.count(".") if parent else 0) if depth is None else depth
    return {"module": name, "parent": parent, "type": kind, "depth": depth, "calls": 1}


def parameter(module_name: str, own: str = "weight", **columns: Any) -> dict[str, Any]:
    row = {
        "rank": 0,
        "module": module_name,
        "name": f"{module_name}.{own}",
        "global_shape": [64, 32],
        "local_shape": [16, 32],
        "dtype": "float32",
        "placements": "R, S(0)",
        "mesh": "dp=2,tp=4",
        "global_bytes": 8192,
        "local_bytes": 2048,
        "requires_grad": True,
        "shared_with": "",
    }
    return {**row, **columns}


def layered(layers: int, odd: int | None = None) -> Trace:
    """Return a model of equal layers, each with three collectives; layer ``odd`` sends one more."""
    modules = [module("Net", kind="Net"), module("Net.layers", "Net", "ModuleList")]
    events, parameters = [], []
    for layer in range(layers):
        name = f"Net.layers.{layer}"
        modules += [
            module(name, "Net.layers", "Block"),
            module(f"{name}.up", name, "Linear"),
            module(f"{name}.down", name, "Linear"),
        ]
        parameters += [parameter(f"{name}.up"), parameter(f"{name}.down", placements="R, S(1)", local_shape=[64, 8])]
        events.append(
            event(
                name,
                len(events),
                op="all_gather",
                axis="dp",
                group="g_dp",
                group_size=2,
                message_bytes=8192,
                wire_bytes=4096,
            )
        )
        events.append(event(f"{name}.down", len(events), cause="P→R", implicit=layer == odd))
        events.append(event(f"{name}.up", len(events), phase="backward", op="reduce_scatter", wire_bytes=3072))
        if layer == odd:
            events.append(event(f"{name}.up", len(events), op="all_gather", cause="S(0)→R", implicit=True))
    groups = [
        {
            "group": "g_dp",
            "axis": "dp",
            "mesh": "dp=2,tp=4",
            "ranks": [0, 4],
            "size": 2,
            "backend": "fake",
            "timing": "none",
        },
        {
            "group": "g_tp",
            "axis": "tp",
            "mesh": "dp=2,tp=4",
            "ranks": [0, 1, 2, 3],
            "size": 4,
            "backend": "fake",
            "timing": "none",
        },
    ]
    return Trace(
        Tables(
            frame("events", events),
            frame("parameters", parameters),
            frame("modules", modules),
            frame("groups", groups),
            TraceInfo(world_size=8, ranks=(0,), mesh="dp=2,tp=4", simulated=True, torch_version="2.13.0"),
        )
    )


def timed(ranks: int = 2, steps: int = 2) -> Trace:
    """Several ranks of a small model with four layers, all phases, and measured times that grow with the size."""
    forward = [(i, *sent) for i in range(4) for sent in (("all_gather", "dp", ""), ("all_reduce", "tp", ".mlp"))]
    again = [(i, "all_gather", "dp", "") for i in (3, 2, 1, 0)]
    backward = [
        (i, *sent) for i in (3, 2, 1, 0) for sent in (("all_reduce", "tp", ".attn"), ("reduce_scatter", "dp", ""))
    ]
    step = {"forward": forward, "recompute": again, "backward": backward, "optimizer": [(0, "all_reduce", "", None)]}
    events = []
    for rank in range(ranks):
        now = 10**9
        sent = [(number, phase, *what) for number in range(steps) for phase in step for what in step[phase]]
        for seq, (number, phase, layer, op, axis, part) in enumerate(sent):
            owner = "" if part is None else f"Transformer.decoder.layers.{layer}{part}"
            size = 2 ** (12 + layer + 3 * len(part or ""))
            end = now + 20_000 + size // 50
            columns = {"rank": rank, "step": number, "op": op, "phase": phase, "axis": axis, "start": now, "end": end}
            group = f"g_{axis or 'world'}"
            events.append(event(owner, seq, group=group, message_bytes=size, wire_bytes=3 * size // 2, **columns))
            now = end + 5_000
    names = ["Transformer", "Transformer.decoder", "Transformer.decoder.layers"]
    names += [f"Transformer.decoder.layers.{i}{part}" for i in range(4) for part in ("", ".attn", ".mlp")]
    modules = [module(name, name.rpartition(".")[0], name.rpartition(".")[2].title()) for name in names]
    groups = [
        {"group": f"g_{axis or 'world'}", "axis": axis, "mesh": "", "ranks": peers, "size": len(peers),
         "backend": "gloo", "timing": "host"}
        for axis, peers in (("dp", [0, 2]), ("tp", [0, 1]), ("", [0, 1, 2, 3]))
    ]  # fmt: skip
    tables = {"events": events, "modules": modules, "groups": groups}
    info = TraceInfo(world_size=4, ranks=tuple(range(ranks)))
    return Trace(Tables(**{name: frame(name, rows) for name, rows in tables.items()}, info=info))


def of_names(names: list[str], mesh: str | None = None) -> Trace:
    """Return one root module per name, each with one collective, one parameter, and an axis, group and source of that
    name."""
    events = [
        event(n, i, axis=n, group=n, cause=n, source=n, op="all_reduce", implicit=True) for i, n in enumerate(names)
    ]
    groups = [
        {"group": n, "axis": n, "mesh": n, "ranks": [0, 1], "size": 2, "backend": "fake", "timing": "none"}
        for n in names
    ]
    return Trace(
        Tables(
            frame("events", events),
            frame("parameters", [parameter(n, placements=n, mesh=n) for n in names]),
            frame("modules", [module(n, kind=n) for n in names]),
            frame("groups", groups),
            TraceInfo(
                world_size=2, ranks=(0,), mesh="".join(names[:1]) if mesh is None else mesh, notes=tuple(names[:1])
            ),
        )
    )
