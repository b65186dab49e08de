"""Steps of a small model whose parameters and optimizer states DeepSpeed keeps on a disk, by our handle or its own.

Usage: torchrun deepspeed_offload.py FOLDER ours|theirs: each rank writes its losses, and with ours what the trace saw.
"""

import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from torch import nn

import dsexplore

folder, way = sys.argv[1:]
if way == "ours":
    dsexplore.aio.install()
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at run time, and used by inference alone
WIDTH, LAYERS, STEPS = 1024, 3, 3  # a rank swaps pieces of a MiB or more
on_disk = {"device": "nvme", "nvme_path": str(Path(folder, way)), "pin_memory": False}
config = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "sub_group_size": WIDTH * WIDTH,
        "offload_optimizer": {**on_disk, "buffer_count": 4},
        "offload_param": {**on_disk, "buffer_count": 12, "buffer_size": WIDTH * WIDTH},
    },
    "aio": {"block_size": 65536, "queue_depth": 8},
}
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS)]
model = nn.Sequential(*layers)
adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=config)
losses = []
with dsexplore.commtrace() as trace:
    for _ in range(STEPS):
        loss = engine(torch.ones(4, WIDTH)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
trace.save(Path(folder, f"{way}-trace-{os.environ['RANK']}"))
io = trace.io
report = {
    "losses": losses,
    "io": io.to_dicts(),
    "waits": trace.io_waits().to_dicts(),
    "headline": trace.headline().sentences,
    "collectives": trace.events.height,
}
if os.environ["RANK"] == "0":
    trace.timeline().to_html(Path(folder, f"{way}.html"))
Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(report, default=str), encoding="utf-8")
dsexplore.aio.uninstall()
deepspeed.comm.destroy_process_group()
