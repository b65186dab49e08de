"""A model, mesh or group of a closed world raises an error that names the world, also while another one is open."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.errors import ClosedWorldError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.simulate import simulate
from dsexplore._internal.worlds.simulated.closed import ClosedMesh, translated
from tests.worlds.sharded_models import Build, both, fully_sharded, replicated, step, tensor_parallel


class TestClosedWorlds:
    @pytest.mark.parametrize("build", [tensor_parallel, fully_sharded, both, replicated])
    @pytest.mark.parametrize("then", [None, "dp=2,tp=4"])
    def test_using_a_model(self, build: Build, then: str | None) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            model = build(mesh)
            step(model)
            loss = model(torch.randn(4, 16)).sum()
        self.refuses(model, loss)
        if then is not None:
            with simulate(8, then) as other:
                self.refuses(model, loss)
                step(build(other))

    def refuses(self, model: nn.Module, loss: torch.Tensor) -> None:
        with pytest.raises(ClosedWorldError, match=r"simulated world of 8 ranks \(dp=2,tp=4\).* closed"):
            model(torch.randn(4, 16))
        if not isinstance(model, DistributedDataParallel):
            with pytest.raises(ClosedWorldError, match="closed"):
                loss.backward(retain_graph=True)
        assert "Linear" in repr(model)

    def test_a_reducer_in_cpp(self) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            model = replicated(mesh)
            loss = model(torch.randn(4, 16)).sum()
        with pytest.raises(RuntimeError, match="closed"):
            loss.backward()

    def test_using_a_mesh_or_a_parameter(self) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            weight = next(tensor_parallel(mesh).parameters())
        assert type(mesh) is ClosedMesh
        assert repr(mesh) == "DeviceMesh(closed)"
        for use in (lambda: mesh["tp"], mesh.__class__.size.__get__(mesh), lambda: weight.full_tensor()):
            with pytest.raises(ClosedWorldError, match="build it again"):
                use()
        assert "closed" in repr(weight)

    @pytest.mark.skipif(not torch_at_least("2.10"), reason="groups of torch 2.9 cannot be made to raise")
    def test_using_a_group_that_was_kept(self) -> None:
        with simulate(8, "dp=2,tp=4") as mesh:
            group = mesh["tp"].get_group()
            name = group.group_name
        for use in (
            lambda: dist.all_reduce(torch.ones(2), group=group),
            lambda: torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", name),
        ):
            with pytest.raises(ClosedWorldError, match="closed"), translated():
                use()
        with pytest.raises(RuntimeError, match="something else"), translated():
            raise RuntimeError("something else")

    def test_the_next_world_has_other_group_names(self) -> None:
        names = []
        for _ in range(2):
            with simulate(8, "dp=2,tp=4") as mesh:
                names.append({mesh[axis].get_group().group_name for axis in ("dp", "tp")})
        assert names[0].isdisjoint(names[1])
