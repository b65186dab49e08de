"""Hangs of training scripts: on one rank only, or on all but one, for a log, a checkpoint, a clean-up."""

from __future__ import annotations

from hang_cases.case import case

IN_SCRIPTS = [
    case(
        "a whole DTensor that one rank prints",
        (0,),
        "other collective",
        """
from torch.distributed.tensor import Shard, distribute_tensor
mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
weight = distribute_tensor(torch.ones(6, 4), mesh, [Shard(0)])
for i in range(3):
    step()
    if rank == 0 and i == 1:
        weight.full_tensor().sum()  # here
time.sleep(60 if rank == 0 else 0)
""",
    ),
    case(
        "a state dict that one rank gathers",
        (0,),
        "other collective|other size",
        """
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world_size,)))
for i in range(3):
    model(torch.ones(2, 8)).sum().backward()
    if rank == 0 and i == 1:
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # here
""",
    ),
    case(
        "a norm of gradients that one rank leaves out",
        (2,),
        "other collective|other size|ended|did not come",
        """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world_size,)))
for i in range(4):
    model(torch.ones(2, 8)).sum().backward()  # here
    if rank != 2 or i != 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
    ),
    case(
        "an object that cannot be pickled",
        (1,),
        "raised",
        """
step()
value = {"rank": rank, "loss": (lambda: 0) if rank == 1 else 0}
dist.all_gather_object([None] * world_size, value)  # here
step()
""",
    ),
    case(
        "a monitored_barrier that runs out of time",
        (1,),
        "outside a collective",
        """
import datetime
step()
if rank == 1:
    time.sleep(60)  # here
dist.monitored_barrier(timeout=datetime.timedelta(seconds=4))
""",
    ),
    case(
        "a barrier made of a count at the store",
        (2,),
        "outside a collective",
        """
store = dist.distributed_c10d._get_default_store()
def wait_for_all(name):
    store.add(name, 1)
    while store.add(name, 0) < world_size:
        time.sleep(0.05)
step()
if rank == 2:
    time.sleep(60)  # here
wait_for_all("loaded")
step()
""",
    ),
    case(
        "an asynchronous checkpoint that one rank does not begin",
        (2,),
        "outside a collective",
        """
import torch.distributed.checkpoint as dcp
step()
if rank == 2:
    time.sleep(60)  # here
dcp.save({"x": ones()}, checkpoint_id=folder + "/dcp", no_dist=False)
dist.barrier()
""",
    ),
    case(
        "a rank is stopped while it waits",
        (2,),
        "stopped",
        """
import threading
for i in range(2):
    dist.all_reduce(ones())
if rank == 1:
    time.sleep(2)
if rank == 2:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGSTOP)).start()
dist.all_reduce(ones(64))  # here
dist.barrier()
""",
    ),
    case(
        "an optimizer's hook ends the process",
        (1,),
        "ended|killed",
        """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def after(*_):
    if rank == 1 and i == 2:
        os._exit(5)
optimizer.register_step_post_hook(after)
for i in range(4):
    model(torch.ones(2, 4)).sum().backward()  # here
    optimizer.step()
""",
    ),
    case(
        "a pool of processes whose work never ends",
        (0,),
        "outside a collective",
        """
import multiprocessing
step()
if rank == 0:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(time.sleep, (60,))  # here
step()
""",
    ),
    case(
        "an event loop that awaits nothing",
        (2,),
        "outside a collective",
        """
import asyncio
async def fetch():
    await asyncio.Event().wait()
step()
if rank == 2:
    asyncio.run(fetch())  # here
step()
""",
    ),
    case(
        "a server that does not answer",
        (1,),
        "outside a collective",
        """
import socket
server, client = socket.socketpair()
step()
if rank == 1:
    client.recv(1)  # here
step()
""",
    ),
    case(
        "two messages of a batch in another order",
        (0, 1),
        "other size|messages in a circle",
        """
sizes = (8, 1024)
step()
if rank == 0:
    calls = [dist.P2POp(dist.isend, ones(size), 1) for size in sizes]
if rank == 1:
    calls = [dist.P2POp(dist.irecv, ones(size), 0) for size in reversed(sizes)]
if rank < 2:
    for work in dist.batch_isend_irecv(calls):  # here
        work.wait()
time.sleep(60 if rank == 2 else 0)
""",
    ),
    case(
        "an object whose end communicates",
        (1,),
        "other collective",
        """
class Run:
    def __del__(self):
        dist.barrier()  # here
run = Run()
for i in range(3):
    step()
    if rank == 1 and i == 1:
        del run
""",
    ),
    case(
        "a schedule of three stages with a microbatch more in the middle",
        (0, 1),
        "messages in a circle",
        """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=6 if rank == 1 else 4, loss_fn=torch.nn.functional.mse_loss)
inputs = [torch.ones(12, 4)] if rank == 0 else []
schedule.step(*inputs, **({"target": torch.ones(12, 4)} if rank == 2 else {}))  # here
""",
    ),
    case(
        "a gather to another rank",
        (2,),
        "other root",
        """
step()
root = 1 if rank == 2 else 0
parts = [torch.empty(8) for _ in range(world_size)] if rank == root else None
dist.gather(ones(), parts, dst=root)  # here
step()
time.sleep(60)
""",
    ),
]
