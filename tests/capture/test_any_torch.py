"""A plain trace on a torch that lacks what can be done without: names that are not public come and go.

Modules: ``capture/``, ``torch_internals/names.py``.
"""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
import torch.distributed as dist
import dsexplore._internal.torch_internals.names as names

NEEDED = (
    "torch._C:DispatchKeySet",
    "torch._C:DispatchKey.",
    "torch._C:_dispatch_keyset_full_after",
    "torch:ops.",  # of the dispatcher
)
asked, get = set(), names.TorchName.get


def without(name):
    is_private = any(part.startswith("_") and part[:2] != "__" for part in name.path.replace(":", ".").split("."))
    if name.is_of_torch and is_private and not name.path.startswith(NEEDED):
        asked.add(name.path)
        return names.missing(name.path)
    return get(name)


names.TorchName.get = without

import dsexplore
import dsexplore.comm

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
with dsexplore.commtrace() as trace:
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    torch.ops._c10d_functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD.group_name)
dist.destroy_process_group()

assert len(asked) > 40, asked
assert not trace.info.notes, trace.info.notes
assert trace.events["message_bytes"].to_list() == [64, 16, 32, 8, 12]
assert set(trace.events["trigger"]) == {""}
assert trace.tables.modules["module"].to_list() == ["Sequential", "Sequential.0", "Sequential.1", "Sequential.2"]
assert "all_reduce" in trace._repr_mimebundle_()["text/html"]
assert dsexplore.sharding((8, 4), ["S(0)"], "dp=4").to_frame().height == 4
print("traced")
"""


def test_a_plain_trace_needs_few_names_that_are_not_public() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "traced"  # torch 2.9 prints how gloo connects
