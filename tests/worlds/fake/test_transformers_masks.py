"""transformers omits masks on fake tensors as on real ones.

Modules: ``worlds/extensions/transformers_attention.py``.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import import_utils

import dsexplore

CONFIG = LlamaConfig(
    num_hidden_layers=1,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=256,
    use_cache=False,
    attn_implementation="sdpa",
)


@pytest.mark.parametrize(("fake", "is_masked"), [(False, False), (False, True), (True, False), (True, True)])
def test_causal_attention_of_whole_sequences_has_no_mask(fake: bool, is_masked: bool) -> None:
    said = "ignore" if fake and is_masked else "error"  # what is read of a mask is invented
    with (
        warnings.catch_warnings(action=said, category=RuntimeWarning),
        dsexplore.simulate(world_size=2, fake=fake),
        dsexplore.commtrace(costs=True) as trace,
    ):
        tokens = torch.randint(256, (2, 32))
        mask = torch.ones(2, 32, dtype=torch.int64) if is_masked else None
        LlamaForCausalLM(CONFIG)(input_ids=tokens, attention_mask=mask, labels=tokens).loss.backward()
    ops = trace.tables.kernels.filter(kind="attention")["op"].to_list()
    assert len(ops) == 2
    assert all(op.endswith(", causal") for op in ops)


def test_transformers_knows_fake_tensors_again_afterwards() -> None:
    with dsexplore.simulate(world_size=2, fake=True):
        inside = torch.zeros(1)
        assert not import_utils.is_fake_tensor(inside)
    assert import_utils.is_fake_tensor(inside)
