"""Pickles of plain data: which are read, and that a run of opcodes is judged as each of them alone."""

from __future__ import annotations

import pickle
import pickletools
import random
import re
import struct
from typing import Any

import pytest

from dsexplore._internal.trace.importers import plain_pickle
from dsexplore._internal.trace.importers.plain_pickle import load_plain

SHARED = ["a list", "that is used twice"]
DATA = {
    "texts": ["", "ä" * 90, "x" * 255, "x" * 256, "x" * 70_000],
    "bytes": [b"", b"\n.\\]", bytes(range(256)), b"x" * 70_000],
    "numbers": [0, -1, 255, 256, 65_535, 1 << 31, (1 << 63) - 1, 1 << 64, -(1 << 200), 0.5, float("inf")],
    "others": [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, set(), {1}, frozenset((1, 2))],
    "shared": [SHARED, SHARED],
    "many": [[str(number)] for number in range(40_000)],
}
REFUSED = {
    "REDUCE": b"]]R.",
    "BUILD": b"]]b.",
    "OBJ": b"(]o.",
    "NEWOBJ": b"])\x81.",
    "NEWOBJ_EX": b"])}\x92.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "NEXT_BUFFER": b"\x97.",
    "READONLY_BUFFER": b"]\x98.",
    "GLOBAL": b"cos\nmkdir\n.",
    "INST": b"(ios\nmkdir\n.",
    "STACK_GLOBAL": b"\x8c\x02os\x8c\x05mkdir\x93.",
    "PERSID": b"P1\n.",
    "BINPERSID": b"K\x01Q.",
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_of_any_protocol_is_read(protocol: int) -> None:
    data = {name: values for name, values in DATA.items() if protocol > 3 or name not in ("bytes", "others")}
    if protocol < 4:  # sets are made by calling a class there, and bytes too before protocol 3
        data["others"] = [value for value in DATA["others"] if not isinstance(value, (set, frozenset))]
    assert load_plain(pickle.dumps(data, protocol)) == data


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_imports_calls_or_fetches_is_refused(name: str) -> None:
    data = REFUSED[name]
    assert name in {opcode.name for opcode, _, _ in pickletools.genops(data)}
    with pytest.raises(pickle.UnpicklingError, match=r"has opcode|plain data names nothing|an object outside it"):
        load_plain(data)


@pytest.mark.parametrize(
    "data",
    [
        b"]r" + struct.pack("<I", 100),
        b"]r" + struct.pack("<I", (1 << 32) - 1) + b"0" * 70_000,
        b"]r" + struct.pack("<I", 1 << 17) + b"0" * 70_000,
        b"X" + struct.pack("<I", 100) + b"short.",
        b"\x8c\x09short.",
        b"\x8d" + struct.pack("<Q", 1 << 60) + b"short.",
        b"\x8a\x09\x01.",
        b"]J\x01\x00",
        b"G\x00.",
        b"K",
    ],
)
def test_what_is_longer_than_the_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError, match="asks for more than it has"):
        load_plain(data)


def judged(data: bytes) -> Any:
    """Return what the check says of a pickle; None if nothing."""
    try:
        return plain_pickle._check(data)
    except pickle.UnpicklingError as error:
        return str(error)


def test_a_run_of_opcodes_is_judged_as_each_of_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole pickles, and in ones of which a byte was changed."""
    draw = random.Random(1)
    small = {name: values[:40] for name, values in DATA.items()}
    small["texts"], small["bytes"] = small["texts"][:4], small["bytes"][:3]
    pickles = [pickle.dumps(DATA["many"], 2)[: 1 << draw.randrange(8, 18)] for _ in range(4)]
    for protocol in range(6):
        whole = pickle.dumps(small, protocol)
        pickles += [whole, *(changed(whole, draw) for _ in range(60))]
    in_runs = [judged(data) for data in pickles]
    monkeypatch.setattr(plain_pickle, "_run_in", lambda _size: re.compile(b""))
    assert in_runs == [judged(data) for data in pickles]
    assert {None, "the pickle asks for more than it has"} < set(in_runs)


def changed(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
