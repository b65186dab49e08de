"""`cell_of`: a cell for real ranks, from source text."""

from __future__ import annotations

import marshal

from dsexplore._internal.worlds.real.messages import Cell

SUM = "import torch, torch.distributed as dist\nx = torch.ones(4)\ndist.all_reduce(x)\n"
STEP = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(8, 64)).sum().backward()
optimizer.step()
"""


def cell_of(body: str, last: str = "None") -> Cell:
    """Return a cell without names of a notebook; its value is that of its last expression."""
    codes = compile(body, "cell", "exec"), compile(last, "cell", "eval")
    return Cell(marshal.dumps(codes), "cell", {"cell": body}, b"", "")
