"""`SimulationMode` returns the results of torch's fake tensor mode, in less time."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.fake import fake_dispatch
from dsexplore._internal.worlds.fake.fake_dispatch import SimulationMode
from dsexplore._internal.worlds.simulate import simulate


def train(mesh: DeviceMesh, steps: int = 2) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.LayerNorm(16))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    parameters = [parameter for parameter in model.parameters() if parameter.device_mesh.ndim == 2]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    for _ in range(steps):
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def described(result: Any, args: Sequence[Any] = ()) -> Any:
    """Return the properties of an op's results, and which arguments share their memory."""
    if isinstance(result, (list, tuple)):
        return [described(each, args) for each in result]
    if not isinstance(result, torch.Tensor):
        return result
    memory = result.untyped_storage()._cdata
    return (
        *(type(result), result.shape, result.stride(), result.storage_offset(), result.dtype, result.device),
        *(result.requires_grad, result.is_conj(), result.is_neg(), torch._C._dispatch_keys(result).raw_repr()),
        [isinstance(arg, torch.Tensor) and arg.untyped_storage()._cdata == memory for arg in args],
    )


def test_every_kept_result_is_what_the_op_itself_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    result_of = SimulationMode.result_of

    def both(mode: SimulationMode, kept: Any, args: Sequence[Any]) -> Any:
        compared.append(described(result_of(mode, kept, args), args))
        raise AskedAgain

    def asked(mode: SimulationMode, func: Any, types: Any, args: Sequence[Any], kwargs: Any) -> Any:
        try:
            return result(mode, func, types, args, kwargs)
        except AskedAgain:
            ours = compared[-1]
            with monkeypatch.context() as without:
                without.setattr(mode, "cache_enabled", False)
                theirs = FakeTensorMode.dispatch(mode, func, types, args, kwargs)
            assert described(theirs, args) == ours, func
            return theirs

    class AskedAgain(Exception):
        pass

    result = SimulationMode._result
    monkeypatch.setattr(SimulationMode, "_result", asked)
    monkeypatch.setattr(SimulationMode, "result_of", both)
    with simulate(mesh="dp=2,tp=4", fake=True) as mesh:
        train(mesh)
    assert len(compared) > 100


def test_a_program_communicates_and_ends_as_under_torchs_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for mode in (SimulationMode, FakeTensorMode):
        monkeypatch.setattr(fake_dispatch, "SimulationMode", mode)
        with simulate(mesh="dp=2,tp=4", fake=True) as mesh, record() as trace:
            model = train(mesh)
            shapes = [(p.shape, p.dtype, p.placements, p.to_local().shape) for p in model.parameters()]
        seen.append((trace.events.drop("group"), shapes))
    (ours, our_shapes), (theirs, their_shapes) = seen
    assert ours.height == 10
    assert ours.equals(theirs)
    assert our_shapes == their_shapes


@pytest.mark.parametrize(
    "one",
    [
        lambda x: (torch.add, x, 1),
        lambda x: (torch.add, x, 1.0),
        lambda x: (torch.add, x, True),
        lambda x: (torch.add, x.double(), 1),
        lambda x: (torch.add, x.t(), 1),
        lambda x: (torch.add, x[:2], 1),
        lambda x: (torch.cat, [x, x], 0),
        lambda x: (torch.cat, [x, x], 1),
        lambda x: (torch.cat, [x, x, x], 0),
        lambda x: (torch.Tensor.to, x, torch.float16),
        lambda x: (torch.Tensor.to, x, torch.bfloat16),
        lambda x: (torch.zeros_like, x.requires_grad_()),
    ],
)
def test_arguments_that_differ_are_told_apart(one: Callable[[torch.Tensor], tuple[Any, ...]]) -> None:
    def described() -> tuple[Any, ...]:
        function, *arguments = one(torch.ones(4, 3))
        result = function(*arguments)
        return result.dtype, result.shape, result.stride(), result.requires_grad

    real = described()
    with SimulationMode():
        assert described() == real  # computed, or cached by a case before
        assert described() == real  # cached


@pytest.mark.parametrize(
    "op",
    [
        lambda x, group: torch.ops.aten._unsafe_view(x, [6, 2]),
        lambda x, group: torch.ops._c10d_functional.all_gather_into_tensor(x, 4, group),
        lambda x, group: torch.ops._c10d_functional.reduce_scatter_tensor(x, "sum", 4, group),
        lambda x, group: torch.ops._c10d_functional.all_reduce(x, "sum", group),
        lambda x, group: torch.ops._c10d_functional.all_to_all_single(x, [1] * 4, [1] * 4, group),
        lambda x, group: torch.ops._c10d_functional.wait_tensor(x),
        lambda x, group: torch.ops._c10d_functional.all_reduce_coalesced([x, x], "sum", group)[1],
    ],
)
def test_what_torch_does_not_remember_is_what_torch_returns(op: Callable[..., Any]) -> None:
    with simulate(mesh="tp=4", fake=True) as mesh:
        mode = torch._guards.detect_fake_mode()
        group = mesh.get_group().group_name
        with record() as trace:
            ours = [described(op(torch.ones(4, 3), group)) for _ in range(3)]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(mode, "_result", super(SimulationMode, mode).dispatch)
                theirs = described(op(torch.ones(4, 3), group))
    assert ours == [theirs] * 3
    events = trace.events.select("op", "group", "message_bytes", "wire_bytes")
    each = events.height // 4
    assert [events[at * each : (at + 1) * each].rows() for at in range(4)] == [events[:each].rows()] * 4


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_a_fused_step_is_not_looked_at_tensor_by_tensor(
    optimizer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    of_torch = FakeTensorMode.dispatch

    def noted(mode: FakeTensorMode, func: Any, *others: Any) -> Any:
        asked.append(func)
        return of_torch(mode, func, *others)

    monkeypatch.setattr(fake_dispatch, "_kept", {})
    with SimulationMode(allow_non_fake_inputs=True):
        parameters = [nn.Parameter(torch.ones(4, 3)) for _ in range(3)]
        for one in parameters:
            one.grad = torch.ones_like(one)
        step = optimizer(parameters, fused=True)
        monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
        step.step()
        assert [step.state[one]["exp_avg"].shape for one in parameters] == [(4, 3)] * 3
    assert asked
    assert not any("fused" in str(func) for func in asked)


def test_a_mesh_gives_the_same_slice_for_the_same_axes() -> None:
    with simulate(mesh="dp=2,tp=4", fake=True) as mesh:
        assert mesh["tp"] is mesh["tp"]
        assert mesh["tp"] is not mesh["dp"]
        assert mesh["dp", "tp"].mesh_dim_names == ("dp", "tp")
        flat = mesh["dp", "tp"]._flatten("all")
        assert mesh["all"].size() == flat.size() == 8
        with pytest.raises((KeyError, RuntimeError), match="pp"):
            mesh["pp"]


def test_a_whole_number_and_a_fraction_are_told_apart() -> None:
    with SimulationMode():
        x = torch.ones(2, dtype=torch.int32)
        for _ in range(2):
            assert (x * 1).dtype == torch.int32
            assert (x * 1.0).dtype == torch.float32


def test_sparse_tensors_are_torch_s_own_to_describe() -> None:
    def kinds() -> list[tuple[torch.layout, torch.Size]]:
        dense = torch.ones(3, 4)
        return [(made.layout, made.shape) for made in (dense + dense, dense.to_sparse() * 2, dense.to_sparse() * 2)]

    real = kinds()
    with SimulationMode():
        assert kinds() == real


def test_a_tensor_of_another_mode_is_refused_as_torch_does() -> None:
    with FakeTensorMode():
        foreign = torch.ones(2)
    with pytest.raises(AssertionError, match=r"(?i)mixing fake modes"), SimulationMode():
        foreign + foreign


def test_ops_on_dtensors_never_reach_the_mode() -> None:
    with simulate(mesh="tp=4", fake=True) as mesh:
        x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        before = dict(FakeTensorMode.cache_info().bypasses)
        total = x + x
        assert isinstance(total, DTensor)
        assert FakeTensorMode.cache_info().bypasses.get("non-fake tensor") == before.get("non-fake tensor")


@pytest.mark.parametrize("fake", [True, False])
def test_parameters_share_the_mesh_that_joins_both_axes(fake: bool) -> None:
    with simulate(mesh="dp=2,tp=4", fake=fake) as mesh:
        meshes = [parameter.device_mesh for parameter in train(mesh, steps=0).parameters()]
        joined = [one for one in meshes if one.ndim == 2]
        assert len(joined) == 4
        assert all(one is joined[0] for one in joined)
        assert joined[0].mesh_dim_names == ("dp", "tp")
        assert joined[0].mesh.tolist() == mesh.mesh.tolist()


class TestHigherOrderOps:
    """Ops that call functions work, although torch looks them up by the exact type of a mode."""

    def test_one_that_torch_describes_by_a_function(self) -> None:
        with simulate(world_size=2, fake=True):
            query = torch.ones(1, 2, 128, 16)
            made, aux = flex_attention(query, query, query, return_aux=AuxRequest(lse=True))
            assert (made.shape, aux.lse.shape, type(made)) == (query.shape, (1, 2, 128), FakeTensor)

    def test_one_that_has_a_rule_for_torchs_mode(self) -> None:
        with simulate(world_size=2, fake=True):
            cond = torch.ops.higher_order.cond
            (made,) = cond(torch.tensor(True), lambda x: (x + 1,), lambda x: (x * 2,), (torch.ones(3),))
            assert (made.shape, type(made)) == ((3,), FakeTensor)

    def test_one_that_no_mode_knows_is_refused_by_its_name(self) -> None:
        class Unknown(HigherOrderOperator):
            def __init__(self) -> None:
                super().__init__("dsexplore_tests_unknown")

            def __call__(self, *args: Any) -> Any:
                return super().__call__(*args)

        with simulate(world_size=2, fake=True), pytest.raises((TypeError, NotImplementedError), match="tests_unknown"):
            Unknown()(torch.ones(3))
