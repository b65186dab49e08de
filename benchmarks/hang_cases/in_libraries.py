"""Hangs inside of calls that torch's libraries make: checkpoints, loaders, hooks, FSDP, meshes, pipelines, threads."""

from __future__ import annotations

from hang_cases.case import case

IN_LIBRARIES = [
    case(
        "a checkpoint of which one part never comes",
        (1,),
        "outside a collective",
        """
import torch.distributed.checkpoint as dcp
class Slow:
    def state_dict(self):
        if rank == 1:
            time.sleep(60)  # here
        return {"x": ones()}
    def load_state_dict(self, state):
        pass
step()
dcp.save({"part": Slow()}, checkpoint_id=folder + "/dcp")
""",
    ),
    case(
        "a collate function that never returns",
        (2,),
        "outside a collective",
        """
def collate(items):
    if rank == 2 and items[0] == 2:
        while True: time.sleep(0.1)  # here
    return torch.ones(4)
for batch in torch.utils.data.DataLoader(range(4), batch_size=1, collate_fn=collate):
    dist.all_reduce(batch)
""",
    ),
    case(
        "a wait for another key of the store",
        (1,),
        "outside a collective",
        """
import datetime
store = dist.distributed_c10d._get_default_store()
step()
if rank == 0:
    store.set("first", "1")
store.wait(["second" if rank == 1 else "first"], datetime.timedelta(seconds=60))  # here
step()
""",
    ),
    case(
        "one gather of objects too few",
        (1,),
        "ended",
        """
for i in range(2 if rank == 1 else 3):
    dist.all_gather_object([None] * world_size, {"rank": rank})  # here
""",
    ),
    case(
        "a hook of backward sleeps",
        (0,),
        "outside a collective",
        """
def hook(gradient):
    if rank == 0 and i == 2:
        time.sleep(60)  # here
    return gradient
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for i in range(4):
    y = model(torch.ones(2, 4))
    y.register_hook(hook)
    y.sum().backward()
""",
    ),
    case(
        "a hook of backward ends the process",
        (2,),
        "ended|killed",
        """
def hook(gradient):
    if rank == 2 and i == 2:
        os._exit(7)
    return gradient
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for i in range(4):
    y = model(torch.ones(2, 4))
    y.register_hook(hook)
    y.sum().backward()  # here
""",
    ),
    case(
        "a reduce_scatter against gathers",
        (2,),
        "other collective",
        """
for i in range(3):
    step()
if rank == 2:
    dist.reduce_scatter_tensor(torch.empty(4), ones(12))  # here
else:
    dist.all_gather_into_tensor(torch.empty(12), ones(4))
time.sleep(60)
""",
    ),
    case(
        "an all_to_all whose splits do not fit",
        (0, 1),
        "other size",
        """
step()
sent = [2, 2, 2] if rank != 1 else [4, 2, 2]
dist.all_to_all_single(torch.empty(6), ones(sum(sent)), [2, 2, 2], sent)  # here
step()
time.sleep(60)
""",
    ),
    case(
        "one against three in a group of four of five",
        (3,),
        "other collective",
        """
for i in range(3):
    step()
    if rank < 4:
        dist.all_reduce(ones(), group=group)
if rank == 3:
    dist.broadcast(ones(), 0, group=group)  # here
elif rank < 4:
    dist.all_reduce(ones(), group=group)
dist.barrier()
""",
        world_size=5,
        before="group = dist.new_group([0, 1, 2, 3])",
    ),
    case(
        "a rank is killed while it receives",
        (1,),
        "killed",
        """
import threading
for i in range(2):
    step()
if rank == 1:
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    dist.recv(ones(), 0)  # here
if rank == 0:
    time.sleep(1.5)
    dist.send(ones(), 1)
dist.barrier()
""",
    ),
    case(
        "a reduction that one rank issues and never waits for",
        (1,),
        "other collective",
        """
for i in range(4):
    dist.all_reduce(ones(16))
    if rank == 1 and i == 2:
        extra = dist.all_reduce(ones(64), async_op=True)  # here
    dist.all_gather_into_tensor(torch.empty(12), ones(4))
time.sleep(60)
""",
    ),
    case(
        "a rank polls for work that nobody else began",
        (2,),
        "other collective",
        """
for i in range(3):
    step()
if rank == 2:
    work = dist.broadcast(ones(), 2, async_op=True)  # here
    work = dist.all_reduce(ones(32), async_op=True)  # here
    while not work.is_completed():
        time.sleep(0.01)
time.sleep(60 if rank == 2 else 0)
""",
    ),
    case(
        "a layer of FSDP that one rank leaves out",
        (1,),
        "other size|other collective|ended|did not come",
        """
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
for layer in (*model, model):
    fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (world_size,)))
for i in range(4):
    x = model[0](torch.ones(2, 8))
    if rank != 1 or i != 3:
        x = model[2](model[1](x))  # here
    x.sum().backward()  # here
""",
    ),
    case(
        "a reduction over the other axis of a mesh",
        (3,),
        "other group order|other collective",
        """
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for i in range(4):
    dist.all_reduce(ones(), group=mesh.get_group("tp"))
    axis = "tp" if rank == 3 and i == 3 else "dp"
    dist.all_reduce(ones(32), group=mesh.get_group(axis))  # here
    dist.barrier()
""",
        world_size=4,
    ),
    case(
        "a thread that a rank joins",
        (2,),
        "outside a collective",
        """
import threading
thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
thread.start()
step()
if rank == 2:
    thread.join()  # here
step()
""",
    ),
    case(
        "a receive from anyone that nobody sends",
        (0, 1, 2),
        "unknown",
        """
step()
if rank == 0:
    dist.recv(ones())  # here
dist.barrier()  # here
""",
    ),
    case(
        "a scatter whose root gives too few",
        (0,),
        "raised",
        """
step()
parts = [ones() for _ in range(world_size - 1)] if rank == 0 else None
dist.scatter(ones(), parts, src=0)  # here
step()
""",
    ),
    case(
        "a schedule with a microbatch less on one stage",
        (0,),
        "ended|did not come",
        """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
stage = PipelineStage(torch.nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
count = 2 if rank == 0 else 4
schedule = ScheduleGPipe(stage, n_microbatches=count)
schedule.step(*([torch.ones(4, 4)] if rank == 0 else []))  # here
""",
        world_size=2,
    ),
    case(
        "two threads of a rank use a group in another order",
        (1,),
        "other collective|other size",
        """
import threading
def reduce(): dist.all_reduce(ones(64))  # here
def gather(): dist.all_gather_into_tensor(torch.empty(12), ones(4))  # here
for i in range(3):
    calls = [reduce, gather]
    if rank == 1 and i == 2:
        calls.reverse()
    for call in calls:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
time.sleep(60)
""",
    ),
    case(
        "a destroyed process group",
        (1,),
        "ended|did not come|raised|outside a collective",
        """
for i in range(3):
    step()
if rank == 1:
    dist.destroy_process_group()
    time.sleep(60)  # here
step()
""",
    ),
]
