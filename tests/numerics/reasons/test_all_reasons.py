"""Rules of reasons on tensors: each with what it explains, and with what it must leave to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.numeric_records import Phase, RunRecord
from dsexplore._internal.numerics.reasons.all_reasons import explain
from dsexplore._internal.numerics.reasons.match import Match
from tests.numerics.compared import comparison_of, entry_of, values

WHOLE = values(4, 8, 6)
PARTIAL = values(4, 8, 6, seed=1)


def explained(whole: Tensor, parts: list[Tensor], mesh: str, phase: Phase = "forward") -> Match | None:
    entry = entry_of(whole, parts, mesh, phase)
    return explain(entry, comparison_of(mesh, entry))


@pytest.mark.parametrize("factor", [2.0, 4.0, 3.0, 0.5, 0.25])
@pytest.mark.parametrize("phase", ["forward", "gradient"])
def test_a_whole_factor_is_told_with_the_axes_of_that_size(factor: float, phase: Phase) -> None:
    match = explained(WHOLE, [WHOLE * factor] * 4, "dp=2,tp=2", phase)
    assert match is not None
    assert match.reason == "factor"
    axes = {2.0: "dp", 0.5: "dp", 4.0: "dp × tp", 0.25: "dp × tp"}.get(factor)
    assert (f"ranks of {axes}" in match.looks_like) if axes else "ranks" not in match.looks_like


def test_any_other_factor_is_none() -> None:
    assert explained(WHOLE, [WHOLE * 1.3] * 2, "dp=2") is None


@pytest.mark.parametrize("phase", ["forward", "gradient", "optimizer"])
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_missing_reduction_is_told_with_its_axis(kind: str, phase: Phase) -> None:
    one, other = PARTIAL, WHOLE - PARTIAL
    scale = 1 if kind == "sum" else 2
    match = explained(WHOLE, [one * scale, other * scale] * 2, "dp=2,tp=2", phase)
    assert match is not None
    assert match.reason == "missing reduction"
    assert f"the {kind} over tp is right" in match.looks_like


def test_parts_of_a_cut_batch_are_reduced_over_the_other_axis() -> None:
    parts = [part for rows in WHOLE.chunk(2) for part in (rows * 3, rows * -2)]
    match = explained(WHOLE, parts, "dp=2,tp=2")
    assert match is not None
    assert "the sum over tp is right" in match.looks_like


def test_columns_in_another_order_are_a_permutation() -> None:
    order = torch.tensor([0, 3, 1, 4, 2, 5])
    match = explained(WHOLE, [WHOLE[..., order]] * 2, "tp=2")
    assert match is not None
    assert match.reason == "permutation"
    assert "columns" in match.looks_like


def test_shards_that_are_dealt_in_turn_are_a_permutation() -> None:
    match = explained(WHOLE, [WHOLE[..., 0::2], WHOLE[..., 1::2]], "tp=2")
    assert match is not None
    assert match.reason == "permutation"


@pytest.mark.parametrize(
    "parts",
    [
        [WHOLE[:, :4], WHOLE[:, :4]],
        [WHOLE[:, 4:], WHOLE[:, :4]],
        [WHOLE.roll(1, 1)[:, :4], WHOLE.roll(1, 1)[:, 4:]],
    ],
)
def test_what_belongs_to_other_positions_is_a_shift(parts: list[Tensor]) -> None:
    match = explained(WHOLE, parts, "cp=2")
    assert match is not None
    assert match.reason == "shift"


def test_some_right_positions_look_like_a_mask() -> None:
    wrong = WHOLE.clone()
    wrong[:, :-1] += PARTIAL[:, :-1]
    match = explained(WHOLE, [wrong] * 2, "tp=2")
    assert match is not None
    assert match.reason == "mask"
    assert "positions 7" in match.looks_like


def test_other_zeros_are_another_draw_of_dropout() -> None:
    def dropped(seed: int) -> Tensor:
        return WHOLE * (values(*WHOLE.shape, seed=seed) > -0.5) / 0.7

    match = explained(dropped(3), [dropped(4), dropped(3)], "tp=2")
    assert match is not None
    assert match.reason == "dropout"


def test_factors_of_each_rank_are_unequal_batches() -> None:
    parts = [WHOLE[:1] * 4.0, WHOLE[1:] * 4 / 3]
    match = explained(WHOLE, parts, "dp=2", "backward")
    assert match is not None
    assert match.reason == "unequal batches"
    assert "rank 0 8, rank 1 24" in match.looks_like


def test_factors_that_are_not_those_of_numbers_of_rows_are_no_unequal_batches() -> None:
    assert explained(WHOLE, [WHOLE[:2] * 8, WHOLE[2:] * 16], "dp=2", "backward") is None


def test_what_one_rank_has_whole_and_others_not_at_all_is_no_missing_reduction() -> None:
    assert explained(WHOLE, [WHOLE, torch.zeros_like(WHOLE)], "dp=2", "gradient") is None


def test_an_update_that_some_ranks_lack_leaves_their_parameters_stale() -> None:
    match = explained(WHOLE, [WHOLE, torch.zeros_like(WHOLE)], "dp=2", "optimizer")
    assert match is not None
    assert (match.reason, "rank 1, and does on rank 0" in match.looks_like) == ("stale parameters", True)
    assert explained(WHOLE, [torch.zeros_like(WHOLE)] * 2, "dp=2", "optimizer") is None


def at_step(step: int, whole: Tensor, parts: list[Tensor]) -> Compared:
    entry = entry_of(whole, parts, "dp=2", "gradient")
    return replace(entry, record=replace(entry.record, step=step))


def test_the_sum_of_steps_is_of_stale_gradients() -> None:
    before = at_step(0, WHOLE, [WHOLE] * 2)
    for value, reason in (
        (WHOLE + PARTIAL, "stale gradients"),
        (WHOLE / 2 + PARTIAL, "stale gradients"),
        (WHOLE + 2 * PARTIAL, None),
        (PARTIAL - WHOLE, None),
    ):
        entry = at_step(1, PARTIAL, [value] * 2)
        match = explain(entry, comparison_of("dp=2", before, entry))
        assert (match.reason if match is not None else None) == reason


@pytest.mark.parametrize(("times", "reason"), [(65536, "factor"), (1.0 / 65536, None), (65535, None)])
def test_a_large_power_of_two_is_the_scale_of_a_loss(times: float, reason: str | None) -> None:
    match = explained(WHOLE, [WHOLE * times] * 2, "dp=2", "gradient")
    assert (match.reason if match is not None else None) == reason
    assert match is None or "unscale" in match.change


@pytest.mark.parametrize(("more", "reason"), [(1, "factor"), (0.5, None), (4, None)])
def test_a_bias_that_each_rank_adds_is_a_factor(more: float, reason: str | None) -> None:
    bias = values(6, seed=5)
    entry = entry_of(WHOLE, [WHOLE + more * bias] * 2, "tp=2")
    comparison = comparison_of("tp=2", entry)
    comparison.ranks.extend(RunRecord(rank=rank, start={"bias": bias}) for rank in range(2))
    match = explain(entry, comparison)
    assert (match.reason if match is not None else None) == reason


@pytest.mark.parametrize(("module", "reason"), [("layers.0.self_attn", "mask"), ("layers.0.norm", None)])
def test_attention_that_is_right_in_some_sequences_looks_like_a_mask(module: str, reason: str | None) -> None:
    wrong = WHOLE.clone()
    wrong[1:3] += PARTIAL[1:3]
    entry = entry_of(WHOLE, [wrong] * 2, "tp=2")
    entry = replace(entry, record=replace(entry.record, module=module))
    match = explain(entry, comparison_of("tp=2", entry))
    assert (match.reason if match is not None else None) == reason


def test_gradients_that_each_rank_clips_before_the_mean_are_a_local_norm() -> None:
    clipped = [part / part.norm() for part in (WHOLE, PARTIAL)]
    mean, whole = (clipped[0] + clipped[1]) / 2, (WHOLE + PARTIAL) / (WHOLE + PARTIAL).norm()
    backward = entry_of(WHOLE, [WHOLE] * 2, "dp=2", "backward")
    for value, reason in ((mean, "local norm"), (3 * mean, None)):
        entry = entry_of(whole, [value] * 2, "dp=2", "gradient")
        match = explain(entry, comparison_of("dp=2", backward, entry))
        assert (match.reason if match is not None else None) == reason


def test_gradients_at_rows_without_one_are_padding() -> None:
    whole = WHOLE.clone()
    whole[:, 6:] = 0
    match = explained(whole, [WHOLE[:2] * 2, WHOLE[2:] * 2], "dp=2", "backward")
    assert match is not None
    assert match.reason == "padding"
    assert match.looks_like.startswith("8 rows")


def test_factors_of_clipped_gradients_are_a_local_norm() -> None:
    clipped = WHOLE / WHOLE.norm()
    parts = [part / part.norm() for part in clipped.chunk(2)]
    match = explained(clipped, parts, "dp=2", "gradient")
    assert match is not None
    assert match.reason == "local norm"


def test_rows_of_which_several_are_the_same_are_found_in_another_order() -> None:
    rows = values(3, 6)[torch.tensor([0, 1, 2, 0, 1, 2, 2, 1])]
    swapped = rows.clone()
    swapped[[1, 2]] = rows[[2, 1]]
    match = explained(rows, [swapped] * 2, "ep=2")
    assert match is not None
    assert match.reason == "permutation"
    once_more = rows.clone()
    once_more[0] = rows[1]  # as often is none of them there
    assert explained(rows, [once_more] * 2, "ep=2") is None


def test_rows_that_are_zero_have_not_moved() -> None:
    rows = values(8, 6)
    rows[6:] = 0
    wrong = rows.clone()
    wrong[:2] = 0
    assert explained(rows, [wrong[:4], wrong[4:]], "dp=2") is None


def gradient_of_logits(logits: Tensor, sums: Tensor, targets: Tensor) -> Tensor:
    return logits.exp() / sums - torch.nn.functional.one_hot(targets, logits.shape[-1])


@pytest.mark.parametrize("own", [True, False])
def test_a_softmax_of_own_columns_lacks_a_reduction(own: bool) -> None:
    logits, targets = values(5, 12), torch.tensor([0, 3, 7, 11, 5])
    right = gradient_of_logits(logits, logits.exp().sum(-1, keepdim=True), targets)
    parts = []
    for at in range(2):
        columns = slice(6 * at, 6 * at + 6)
        other = logits.exp().sum(-1, keepdim=True) * values(5, 1, seed=at).abs()  # of no columns at all
        sums = logits[:, columns].exp().sum(-1, keepdim=True) if own else other
        mine = torch.nn.functional.one_hot(targets, 12)[:, columns]
        parts.append(logits[:, columns].exp() / sums - mine)
    match = explained(right, parts, "tp=2", "backward")
    assert (match.reason if match is not None else None) == ("missing reduction" if own else None)


@pytest.mark.parametrize("kind", ["trust", "clip", "none"])
def test_updates_scaled_by_norms_of_shards_are_a_local_norm(kind: str) -> None:
    before, gradient = values(4, 6), values(4, 6, seed=1)

    def update(parameter: Tensor, gradient: Tensor) -> Tensor:
        rms = gradient.square().mean().sqrt()
        return {"trust": gradient * parameter.norm() / gradient.norm(), "clip": gradient / rms}.get(
            kind, gradient * parameter.abs().max()
        )

    whole = update(before, gradient)
    parts = [update(one, other) for one, other in zip(before.chunk(2), gradient.chunk(2), strict=True)]
    entry = entry_of(whole, parts, "dp=2", "optimizer")
    entry = replace(entry, record=replace(entry.record, value=before + whole))
    match = explain(entry, comparison_of("dp=2", entry))
    assert (match.reason if match is not None else None) == (None if kind == "none" else "local norm")


@pytest.mark.parametrize(
    ("kind", "reason"), [("turned", "permutation"), ("part", "missing reduction"), ("other", None)]
)
def test_the_input_of_a_linear_layer_is_asked_about(kind: str, reason: str | None) -> None:
    weight, bias, given = values(8, 6), values(8, seed=1), values(4, 5, 6, seed=2)
    cut = torch.arange(6) < 3
    of_ranks = {
        "turned": [given.roll(3, -1)] * 2,
        "part": [given * cut, given * ~cut],
        "other": [values(4, 5, 6, seed=3)] * 2,
    }[kind]
    entry = entry_of(given @ weight.T + bias, [one @ weight.T + bias for one in of_ranks], "tp=2", module="wo")
    comparison = comparison_of("tp=2", entry)
    for name, value in (("weight", weight), ("bias", bias)):
        held = entry_of(torch.zeros_like(value), [torch.zeros_like(value)] * 2, "tp=2", "optimizer", "wo")
        comparison.entries.append(replace(held, record=replace(held.record, name=f"wo.{name}", value=value)))
    match = explain(entry, comparison)
    assert (match.reason if match is not None else None) == reason
    assert match is None or match.looks_like.startswith("in its input")


@pytest.mark.parametrize(("positions", "reason"), [([0, 1, 2, 3], "shift"), ([0, 1, 6, 7], None)])
def test_sources_with_other_positions_are_a_shift(positions: list[int], reason: str | None) -> None:
    tokens, places = values(2, 8, 6), values(8, 6, seed=1)
    dealt = [torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])]
    mine = torch.tensor(positions)
    other = torch.tensor([at for at in range(8) if at not in positions])
    entries = [
        entry_of(tokens, [tokens[:, rows] for rows in dealt], "cp=2", module="embedding"),
        entry_of(places, [places[mine], places[other]], "cp=2", module="positions"),
    ]
    assert all(entry.is_right for entry in entries)
    noise = values(2, 4, 6, seed=7)
    last = entry_of(tokens + places, [noise, noise + 1], "cp=2", module="norm")
    last = replace(last, record=replace(last.record, sources=("embedding", "positions")))
    match = explain(last, comparison_of("cp=2", *entries, last))
    assert (match.reason if match is not None else None) == reason


@pytest.mark.parametrize(("times", "looks"), [(2.0, "sum over tp"), (4.0, "mean over tp"), (1.0, "sum over tp")])
def test_parts_of_gradients_of_outputs_are_summed_in_the_scale_of_the_loss(times: float, looks: str) -> None:
    halves = WHOLE.chunk(2)
    of_model = entry_of(WHOLE, [2 * half for half in halves for _ in range(2)], "dp=2,tp=2", "backward")
    parts = [part for half in halves for part in (PARTIAL[:2], times * half - PARTIAL[:2])]
    entry = entry_of(WHOLE, parts, "dp=2,tp=2", "backward", "norm")
    match = explain(entry, comparison_of("dp=2,tp=2", of_model, entry))
    assert match is not None
    assert (match.reason, match.axes) == ("missing reduction", ("tp",))
    assert looks in match.looks_like


@pytest.mark.parametrize("phase", ["forward", "backward", "gradient", "optimizer"])
def test_noise_has_no_reason(phase: Phase) -> None:
    assert explained(WHOLE, [PARTIAL] * 2, "dp=2", phase) is None
    assert explained(WHOLE, [WHOLE, PARTIAL], "dp=2", phase) is None


@pytest.mark.parametrize(
    ("of_reference", "of_ranks", "reason"),
    [
        (range(5), range(8), "padding"),
        (range(3, 8), range(8), "padding"),
        (range(5), range(5), None),  # the same positions, and other values
        (range(8), range(8), None),
        ([7], range(8), None),  # the last position is taken alone
        ([0, 4], range(8), None),  # some positions are chosen, none is left out as padding
        (range(2, 6), range(8), None),  # neither an end nor a start is left out alone
        ([], range(8), None),
    ],
)
def test_a_pool_over_ends_of_sequences_is_padding(
    of_reference: Sequence[int], of_ranks: Sequence[int], reason: str | None
) -> None:
    def gradient(positions: Sequence[int]) -> Tensor:
        whole = torch.zeros(4, 8, 6, dtype=torch.float64)
        at = list(positions)
        whole[:, at] = WHOLE[:, at]
        return whole

    pooled = values(4, 6)
    entry = entry_of(pooled, [values(4, 6, seed=9).chunk(2)[rank] for rank in range(2)], "dp=2", module="pool")
    entry = replace(entry, record=replace(entry.record, sources=("encoder",)))
    source = entry_of(gradient(of_reference), list(gradient(of_ranks).chunk(2)), "dp=2", "backward", "encoder")
    match = explain(entry, comparison_of("dp=2", source, entry))
    assert (match.reason if match is not None else None) == reason
    other = replace(source, record=replace(source.record, module="another"))
    assert explain(entry, comparison_of("dp=2", other, entry)) is None
