"""What tensors hold at the largest sum, by use."""

from __future__ import annotations

import torch

from dsexplore.capture.live_memory import LiveMemory


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
