"""Two steps of a small model with DeepSpeed's ZeRO-3, with the comms log on; each rank writes what it logged.

Usage: torchrun deepspeed_zero3.py FOLDER plain|before|after: without `dsexplore.comm.install`, with it before DeepSpeed
is imported, or with it afterwards.
"""

import json
import os
import sys
from pathlib import Path

import torch

import dsexplore
import dsexplore.comm as dist

folder, way = sys.argv[1:]
dist.configure(enabled=True)
if way == "before":
    dist.install()
import deepspeed  # noqa: E402 - before or after `install`

if way == "after":
    dist.install()

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at run time, and used by inference alone
WIDTH, HIDDEN, OUT, STEPS = 64, 128, 8, 2
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
torch.manual_seed(0)
with dsexplore.commtrace() as trace:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, OUT))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    losses = []
    for _ in range(STEPS):
        loss = engine(torch.ones(4, WIDTH)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
records = dist.comms_logger.records
columns = ["op", "message_bytes", "group_size", "dtype", "phase", "trigger", "source"]
report = {
    "log": [[record.op, record.bytes, record.layer, record.name, record.source] for record in records],
    "trace": trace.events.select(columns).rows(),
    "losses": losses,
}
rank = os.environ["RANK"]
Path(folder, f"{rank}.json").write_text(json.dumps(report), encoding="utf-8")
dist.uninstall()
dist.configure(enabled=False)
deepspeed.comm.destroy_process_group()
