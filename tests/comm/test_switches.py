"""Switches: nothing is sent, nothing is changed, and everyone is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dsexplore.comm as dist
from dsexplore._internal.comm import switches
from dsexplore._internal.errors import UsageError

Ranks = Callable[..., list[Any]]
SPELLINGS = {
    "all_gather": (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_base",
        "all_gather_single",
        "all_gather_coalesced",
        "all_gather_object",
    ),
    "reduce_scatter": ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"),
    "broadcast": ("broadcast", "broadcast_object_list"),
    "all_reduce": ("all_reduce", "inference_all_reduce", "all_reduce_coalesced"),
    "reduce": ("reduce",),
}
SPELLINGS["backward"] = SPELLINGS["all_gather"] + SPELLINGS["reduce_scatter"]


def each_spelling_while_off(switch: str, by_function: bool) -> dict[str, Any]:
    import warnings

    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    n = dist.get_world_size()
    part, whole = torch.full((2,), 5.0), torch.full((2 * n,), 7.0)
    parts, objects = [torch.full((2,), 6.0) for _ in range(n)], ["mine"] * n
    calls = {
        "all_gather": (parts, part),
        "all_gather_into_tensor": (whole, part),
        "all_gather_base": (whole, part),
        "all_gather_single": (whole, part),
        "all_gather_coalesced": ([whole], [part]),
        "all_gather_object": (objects, "other"),
        "reduce_scatter": (part, parts),
        "reduce_scatter_tensor": (part, whole),
        "reduce_scatter_single": (part, whole),
        "broadcast": (part, 0),
        "broadcast_object_list": (objects, 0),
        "all_reduce": (part,),
        "inference_all_reduce": (part,),
        "all_reduce_coalesced": ([part],),
        "reduce": (part, 0),
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        getattr(dist, f"{switch}_comm_off")(True)
        if by_function:
            handles = {name: getattr(dist, name)(*calls[name]) for name in SPELLINGS[switch]}
        else:
            handles = {
                name: getattr(dist.cdb, name)(*calls[name]) for name in SPELLINGS[switch] if "single" not in name
            }
        getattr(dist, f"{switch}_comm_off")(False)
    back_on = torch.ones(1)
    dist.all_reduce(back_on)
    if handles.get("inference_all_reduce") is part:  # returned on or off
        handles["inference_all_reduce"] = dist.Noop()
    untouched = all(bool((t == v).all()) for t, v in [(part, 5), (whole, 7), *((p, 6) for p in parts)])
    return {
        "handles": {name: (type(handle).__name__, handle.wait()) for name, handle in handles.items()},
        "untouched": untouched and objects == ["mine"] * n,
        "warned": [str(one.message) for one in warned],
        "back on": back_on.item(),
        "log": [(record.op, record.bytes, record.cause) for record in dist.comms_logger.records],
        "trace": dist.comms_logger.trace().by_op().select("op", "message_bytes", "wire_bytes").rows(),
        "raw": {name: data for name, data in dist.comms_logger.get_raw_data().items() if "off" in name},
    }


@pytest.mark.processes
@pytest.mark.parametrize("by_function", [True, False])
@pytest.mark.parametrize("switch", SPELLINGS)
def test_a_switch_turns_off_every_spelling(ranks: Ranks, switch: str, by_function: bool) -> None:
    first, second = ranks(2, each_spelling_while_off, switch, by_function)
    names = [name for name in SPELLINGS[switch] if by_function or "single" not in name]
    ops = ("all_gather", "reduce_scatter") if switch == "backward" else (switch,)
    cause = f"switched off by {switch}_comm_off"
    for seen in (first, second):
        assert seen["handles"] == dict.fromkeys(names, ("Noop", None))
        assert seen["untouched"]
        assert seen["back on"] == 2.0
        *off, on = seen["log"]
        assert len(off) == len(names)
        assert {entry[0] for entry in off} == {f"switched_off:{op}" for op in ops}
        assert {entry[1:] for entry in off} == {(0, cause)}
        assert on == ("all_reduce", 4, "")
        assert seen["trace"][0] == ("all_reduce", 4, 4)
        assert {row[1:] for row in seen["trace"][1:]} == {(0, 0)}
        assert all(data == {0: [data[0][0], [], [], []]} for data in seen["raw"].values())
    (warning,) = first["warned"]
    assert warning.startswith(f"{switch}_comm_off(True): ")
    assert second["warned"] == []


def test_deepspeeds_flags_are_the_switches() -> None:
    from dsexplore.comm import torch as backend

    flags = ["DS_COMM_ALL_GATHER_OFF", "DS_COMM_REDUCE_SCATTER_OFF", "DS_COMM_BROADCAST_OFF"]
    flags += ["DS_COMM_ALL_REDUCE_OFF", "DS_COMM_REDUCE_OFF"]

    def values() -> list[bool]:
        return [getattr(backend, flag) for flag in flags]

    assert values() == [False] * 5
    backend.backward_comm_off(True)
    assert values() == [True, True, False, False, False]
    assert switches.off == {"all_gather": "backward_comm_off", "reduce_scatter": "backward_comm_off"}
    backend.DS_COMM_ALL_GATHER_OFF = False
    backend.DS_COMM_REDUCE_OFF = True
    assert values() == [False, True, False, False, True]
    assert switches.off == {"reduce_scatter": "backward_comm_off", "reduce": "reduce_comm_off"}


def test_a_block_restores_what_was_also_after_an_exception() -> None:
    dist.broadcast_comm_off(True)
    with pytest.raises(KeyError), dist.comm_off("all_reduce", "broadcast"):
        assert set(switches.off) == {"all_reduce", "broadcast"}
        raise KeyError
    assert switches.off == {"broadcast": "broadcast_comm_off"}
    dist.broadcast_comm_off()  # on again: DeepSpeed's default
    assert switches.off == {}


def test_blocks_nest() -> None:
    with dist.comm_off("backward"):
        with dist.comm_off("all_gather"):
            assert switches.off["all_gather"] == "all_gather_comm_off"
        assert switches.off == dict.fromkeys(("all_gather", "reduce_scatter"), "backward_comm_off")
    assert not switches.off


def test_a_switch_that_is_none_is_named() -> None:
    told = r"comm_off\('gossip'\): no such switch; there are all_gather, reduce_scatter"
    with pytest.raises(UsageError, match=told), dist.comm_off("all_reduce", "gossip"):
        pass
    assert not switches.off


def asynchronous_calls_while_off() -> list[Any]:
    import torch

    import dsexplore.comm as dist

    with dist.comm_off("all_reduce"):
        handle = dist.all_reduce(torch.ones(2), async_op=True)
        future = handle.get_future()
    return [handle.is_completed(), handle.is_success(), future.done(), future.wait()]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:all_reduce_comm_off")
def test_the_handle_of_a_call_that_is_off_is_done(ranks: Ranks) -> None:
    assert ranks(2, asynchronous_calls_while_off) == [[True, True, True, None]] * 2
