"""Hangs outside the collectives of a group: in ``new_group``, at the store, in object collectives, in plain Python."""

from __future__ import annotations

from hang_cases.case import case

OUTSIDE = [
    case(
        "new_group in another order",
        (2,),
        "outside a collective",
        """
step()
if rank == 2:
    dist.new_group([0, 1])  # here
    dist.new_group([1, 2])  # here
else:
    dist.new_group([0, 1, 2])
    dist.new_group([1, 2])
""",
    ),
    case(
        "new_group on some ranks",
        (0,),
        "outside a collective",
        """
step()
if rank == 0:
    time.sleep(60)  # here
dist.new_group([0, 1, 2])
""",
    ),
    case(
        "monitored_barrier",
        (1,),
        "outside a collective",
        """
import datetime
step()
if rank == 1:
    time.sleep(60)  # here
dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
""",
    ),
    case(
        "a key of the store that nobody sets",
        (0, 1, 2),
        "outside a collective",
        """
step()
dist.distributed_c10d._get_default_store().get("ready")  # here
""",
    ),
    case(
        "a key of the store that one rank forgets",
        (1,),
        "outside a collective",
        """
import datetime
store = dist.distributed_c10d._get_default_store()
step()
if rank == 1:
    while True:
        time.sleep(0.1)  # here
    store.set("ready", "1")
store.wait(["ready"], datetime.timedelta(seconds=60))
""",
    ),
    case(
        "init_process_group without a rank",
        (2,),
        "outside a collective",
        """
if rank == 2:
    time.sleep(60)  # here
dist.init_process_group("gloo")
step()
""",
        has_group=False,
    ),
    case(
        "an object collective that a rank leaves out",
        (1,),
        "outside a collective",
        """
step()
objects = [None] * world_size
if rank == 1:
    time.sleep(60)  # here
dist.all_gather_object(objects, {"rank": rank})
""",
    ),
    case(
        "an object that is broadcast on some ranks",
        (2,),
        "other collective",
        """
for i in range(2):
    step()
if rank == 2:
    dist.all_reduce(ones())  # here
else:
    dist.broadcast_object_list([{"a": 1}], src=0)
""",
    ),
    case(
        "a checkpoint that one rank does not save",
        (0,),
        "other collective",
        """
import torch.distributed.checkpoint as dcp
step()
if rank == 0:
    dist.all_reduce(ones())  # here
else:
    dcp.save({"x": ones()}, checkpoint_id=folder + "/dcp")
""",
    ),
    case(
        "parameters that DDP does not see used",
        (1,),
        "raised|did not come",
        """
class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    def forward(self, x, both):
        return self.b(self.a(x)) if both else self.a(x)
model = torch.nn.parallel.DistributedDataParallel(Two())
for i in range(2):
    model(torch.ones(2, 4), both=rank != 1).sum().backward()  # here
""",
    ),
    case(
        "all ranks sleep",
        (0, 1, 2),
        "outside a collective",
        """
step()
time.sleep(60)  # here
""",
    ),
    case(
        "a rank waits for a file of another",
        (0,),
        "outside a collective",
        """
step()
if rank == 0:
    while not os.path.exists(folder + "/nobody-writes-this"):
        time.sleep(0.1)  # here
dist.barrier()
""",
    ),
    case(
        "a group of other ranks",
        (1,),
        "outside a collective|other collective|other group order",
        """
step()
group = dist.new_group([0, 1] if rank == 1 else [0, 1, 2])  # here
dist.all_reduce(ones(), group=group)  # here
""",
    ),
    case(
        "a lock of a file that a waiting rank holds",
        (1, 2),
        "outside a collective",
        """
import fcntl
step()
handle = open(folder + "/lock", "w")
if rank:
    time.sleep(1)
fcntl.flock(handle, fcntl.LOCK_EX)  # here
dist.barrier()
""",
    ),
    case(
        "a queue that a dead thread was to fill",
        (0,),
        "outside a collective",
        """
import queue, threading
filled = queue.Queue()
def fill():
    for i in range(2):
        filled.put(ones())
if rank == 0:
    threading.Thread(target=fill).start()
for i in range(4):
    dist.all_reduce(filled.get() if rank == 0 else ones())  # here
""",
    ),
]
