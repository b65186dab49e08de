"""What tensors hold at the largest sum, by use."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dsexplore._internal.capture.kernels.fused_tensors import USES, Use
from dsexplore._internal.capture.kernels.live_memory import LiveMemory


def at_largest_sum(memory: LiveMemory) -> dict[str, int]:
    """Bytes of the uses that have any, of a first segment that ends here."""
    memory.end_segment()
    memory.release()
    return {use: size for use, size in memory.rows()[0].items() if size}


def test_what_was_made_behind_the_largest_sum_is_no_part_of_it_whatever_use_it_gets() -> None:
    memory = LiveMemory()
    large = torch.ones(100)
    memory.made([large], "activations")
    del large
    small = torch.ones(10)
    memory.made([small], "activations")
    memory.assign([small], "buffers")
    assert at_largest_sum(memory) == {"activations": 400}


def test_what_an_optimizer_has_and_no_op_has_met_is_not_counted() -> None:
    memory = LiveMemory()
    met, unmet = torch.ones(10), torch.ones(20)
    memory.met([met], "activations")
    memory.assign([unmet, met], "parameters")
    assert at_largest_sum(memory) == {"parameters": 40}


def test_a_storage_counts_with_the_size_that_it_was_given_last() -> None:
    memory = LiveMemory()
    gathered = torch.ones(100)
    memory.made([gathered], "parameters")
    gathered.untyped_storage().resize_(0)
    memory.resized(gathered.untyped_storage())
    other = torch.ones(50)
    memory.made([other], "activations")
    gathered.untyped_storage().resize_(80)
    memory.resized(gathered.untyped_storage())
    unknown = torch.ones(30).untyped_storage()
    memory.resized(unknown)
    gathered.untyped_storage().resize_(400)
    memory.resized(gathered.untyped_storage())
    assert at_largest_sum(memory) == {"parameters": 400, "activations": 200, "buffers": 120}


def test_a_storage_that_was_empty_before_the_recording_takes_along_only_what_it_was_given_since() -> None:
    memory = LiveMemory()
    parameter = torch.ones(24)
    parameter.untyped_storage().resize_(0)
    memory.met([parameter], "gradients")
    parameter.untyped_storage().resize_(96)
    memory.resized(parameter.untyped_storage())
    memory.end_segment()
    memory.assign([parameter], "parameters")
    parameter.untyped_storage().resize_(0)
    memory.resized(parameter.untyped_storage())
    memory.end_segment()
    memory.release()
    assert [{use: size for use, size in row.items() if size} for row in memory.rows()] == [{"parameters": 96}] * 2


class AnyProgram(RuleBasedStateMachine):
    """Storages that are made, met, resized, given other uses and freed, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = LiveMemory()
        self.tensors: list[torch.Tensor] = []
        self.met = 0
        """Bytes at their first meeting of what was there before."""
        self.now = self.peak = 0
        """Bytes held above those, at the moment and at most in this segment."""
        self.peaks: list[int] = []

    def change(self, nbytes: int) -> None:
        self.now += nbytes
        self.peak = max(self.peak, self.now)

    @rule(size=st.integers(0, 9), use=st.sampled_from(USES), is_new=st.booleans())
    def add(self, size: int, use: Use, is_new: bool) -> None:
        self.tensors.append(torch.ones(size))
        (self.memory.made if is_new else self.memory.met)(self.tensors[-1:], use)
        if is_new:
            self.change(4 * size)
        else:
            self.met += 4 * size

    @precondition(lambda self: self.tensors)
    @rule(place=st.integers(0, 99), size=st.integers(0, 9))
    def resize(self, place: int, size: int) -> None:
        storage = self.tensors[place % len(self.tensors)].untyped_storage()
        before = storage.nbytes()
        storage.resize_(4 * size)
        self.memory.resized(storage)
        self.change(4 * size - before)

    @precondition(lambda self: self.tensors)
    @rule(place=st.integers(0, 99), use=st.sampled_from(USES))
    def assign(self, place: int, use: Use) -> None:
        self.memory.assign([self.tensors[place % len(self.tensors)]], use)

    @precondition(lambda self: self.tensors)
    @rule(place=st.integers(0, 99))
    def free(self, place: int) -> None:
        tensor = self.tensors.pop(place % len(self.tensors))
        self.change(-tensor.untyped_storage().nbytes())

    @rule()
    def end_segment(self) -> None:
        self.memory.end_segment()
        self.peaks.append(self.peak)
        self.peak = self.now

    def teardown(self) -> None:
        self.end_segment()
        rows = self.memory.rows()
        assert [sum(row.values()) for row in rows] == [peak + self.met for peak in self.peaks]
        assert all(size >= 0 for row in rows for size in row.values()), rows


TestNoUseHasLessThanNothing = AnyProgram.TestCase
TestNoUseHasLessThanNothing.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
