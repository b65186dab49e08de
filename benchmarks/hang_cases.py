"""Hangs of 42 kinds on real gloo ranks, each with what is right to say of it; `hangs.py` runs them.

A case is the body of a recorded block, in which ``rank`` and ``world_size`` are defined. The line where a culprit
stands ends with ``# here``.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFACE = """\
import json, os, random, signal, sys, time
import torch
import torch.distributed as dist
import dsexplore
torch.set_num_threads(1)
def ones(count=8, dtype=torch.float32):
    return torch.ones(count, dtype=dtype)
def step(count=8):
    dist.all_reduce(ones(count))
"""


@dataclass(frozen=True)
class Case:
    """A program that hangs, or does not, and what is right to say of it."""

    name: str
    body: str
    ranks: tuple[int, ...]
    """The culprits; of a symmetric case all ranks among which the cause is. Empty if nothing hangs."""
    reasons: tuple[str, ...]
    """The words that are right."""
    world_size: int = 3
    has_group: bool = True
    """False if the program makes its process group itself, before the block."""
    before: str = ""
    """Lines before the block."""


def _case(name: str, ranks: tuple[int, ...], reasons: str, body: str, **options: object) -> Case:
    return Case(name, body.strip("\n"), ranks, tuple(reasons.split("|")), **options)  # type: ignore[arg-type]


_BEHAVES = [
    _case(
        "nothing hangs",
        (),
        "none",
        """
for _ in range(3):
    step()
""",
    ),
    _case(
        "a straggler arrives after the ranks have saved",
        (),
        "none",
        """
for i in range(3):
    if rank == 1 and i == 1:
        time.sleep(3)
    step()
""",
    ),
    _case(
        "a straggler arrives",
        (),
        "none",
        """
for i in range(3):
    if rank == 1:
        time.sleep(0.8)
    step()
""",
    ),
]

_MISSING = [
    _case(
        "a rank has one batch less",
        (2,),
        "ended",
        """
for i in range(3 if rank == 2 else 4):
    dist.all_reduce(ones())  # here
""",
    ),
    _case(
        "a rank raises",
        (1,),
        "raised",
        """
for i in range(4):
    if rank == 1 and i == 2:
        raise ValueError("bad sample 17")  # here
    step()
""",
    ),
    _case(
        "a library raises for a rank",
        (1,),
        "raised",
        """
for i in range(4):
    step()
    if rank == 1 and i == 1:
        json.loads("{")  # here
""",
    ),
    _case(
        "sys.exit",
        (0,),
        "ended",
        """
for i in range(4):
    step()
    if rank == 0 and i == 1:
        sys.exit(3)  # here
""",
    ),
    _case(
        "os._exit",
        (2,),
        "ended|killed",
        """
for i in range(4):
    if rank == 2 and i == 2:
        os._exit(3)
    dist.all_reduce(ones())  # here
""",
    ),
    _case(
        "SIGKILL",
        (1,),
        "killed",
        """
for i in range(4):
    if rank == 1 and i == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(ones())  # here
""",
    ),
    _case(
        "SIGABRT",
        (1,),
        "killed",
        """
for i in range(4):
    dist.all_reduce(ones())  # here
    if rank == 1 and i == 2:
        os.abort()
""",
    ),
    _case(
        "SIGSTOP",
        (2,),
        "stopped",
        """
for i in range(4):
    if rank == 2 and i == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(ones())  # here
""",
    ),
    _case(
        "sleeps",
        (2,),
        "outside a collective",
        """
for i in range(4):
    if rank == 2 and i == 2:
        time.sleep(60)  # here
    step()
""",
    ),
    _case(
        "computes",
        (0,),
        "outside a collective",
        """
def spin():
    while True: sum(range(1000))  # here
for i in range(4):
    step()
    if rank == 0 and i == 1:
        spin()
""",
    ),
    _case(
        "a data loader that hands out nothing",
        (1,),
        "outside a collective",
        """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if rank == 1 and index == 2:
            time.sleep(60)
        return torch.ones(4)
for batch in torch.utils.data.DataLoader(Slow(), num_workers=1):  # here
    dist.all_reduce(batch)
""",
    ),
    _case(
        "a lock that nobody releases",
        (1,),
        "outside a collective",
        """
import threading
lock = threading.Lock()
lock.acquire()
step()
if rank == 1:
    lock.acquire()  # here
step()
""",
    ),
    _case(
        "a rank skips a collective for good",
        (2,),
        "other collective",
        """
for i in range(3):
    dist.all_reduce(ones(8))
    if rank != 2 or i != 2:
        dist.broadcast(ones(4), 0)
    dist.all_reduce(ones(8))  # here
""",
    ),
]

_PAIR = """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
"""

_OTHERWISE = [
    _case(
        "another collective",
        (2,),
        "other collective",
        """
for i in range(3):
    step()
if rank == 2:
    dist.broadcast(ones(), 0)  # here
else:
    step()
""",
    ),
    _case(
        "a barrier in place of a reduction",
        (0,),
        "other collective",
        """
for i in range(3):
    step()
if rank == 0:
    dist.barrier()  # here
else:
    step()
""",
    ),
    _case(
        "a reduction that nobody else makes",
        (0,),
        "other collective",
        """
for i in range(4):
    dist.all_reduce(ones(64))
    if rank == 0 and i == 3:
        dist.all_reduce(ones(1))  # here
""",
    ),
    _case(
        "another size",
        (1,),
        "other size",
        """
for i in range(3):
    step()
dist.all_reduce(ones(4096 if rank == 1 else 64))  # here
time.sleep(60)
""",
    ),
    _case(
        "a last batch that is smaller",
        (2,),
        "other size",
        """
for i in range(3):
    step(1000)
dist.all_reduce(ones(10 if rank == 2 else 1000))  # here
time.sleep(60)
""",
    ),
    _case(
        "a gather of another size",
        (1,),
        "other size",
        """
step()
mine = ones(16 if rank == 1 else 4)
out = torch.empty(world_size * mine.numel())
dist.all_gather_into_tensor(out, mine)  # here
time.sleep(60)
""",
    ),
    _case(
        "another dtype",
        (2,),
        "other dtype",
        """
for i in range(2):
    step()
dist.all_reduce(ones(64, torch.float64 if rank == 2 else torch.float32))  # here
time.sleep(60)
""",
    ),
    _case(
        "another root",
        (2,),
        "other root",
        """
for i in range(3):
    dist.broadcast(ones(), 0)
dist.broadcast(ones(), 1 if rank == 2 else 0)  # here
step()
time.sleep(60)
""",
    ),
    _case(
        "two groups in another order",
        (1,),
        "other group order",
        """
for i in range(4):
    if rank < 2:
        order = [second, first] if rank == 1 and i == 3 else [first, second]
        for group in order:
            dist.all_reduce(ones(), group=group)  # here
""",
        before=_PAIR,
    ),
    _case(
        "groups of two axes in another order",
        (0, 3),
        "other group order",
        """
for i in range(4):
    calls = [lambda: dist.all_reduce(ones(), group=row), lambda: dist.all_reduce(ones(4), group=column)]  # here
    if rank in (0, 3) and i == 3:
        calls.reverse()
    for call in calls:
        call()
""",
        world_size=4,
        before="""
rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
row, column = rows[rank // 2], columns[rank % 2]
""",
    ),
    _case(
        "three to one across groups",
        (3,),
        "other group order|other collective",
        """
for i in range(4):
    dist.all_reduce(ones(), group=group)
    step()
if rank == 3:
    dist.all_reduce(ones(), group=group)  # here
else:
    step()
""",
        world_size=4,
        before="group = dist.new_group([0, 1, 2, 3])",
    ),
    _case(
        "barriers of two lines",
        (2,),
        "ended|did not come",
        """
for epoch in range(2):
    for batch in range(3 if rank == 2 else 5):
        dist.barrier()
    dist.barrier()  # here
""",
    ),
]

_MESSAGES = [
    _case(
        "a ring of sends",
        (0, 1, 2, 3),
        "messages in a circle",
        """
step()
dist.send(ones(10_000_000), (rank + 1) % 4)  # here
dist.recv(ones(10_000_000), (rank - 1) % 4)
""",
        world_size=4,
    ),
    _case(
        "two ranks that both receive first",
        (0, 1),
        "messages in a circle",
        """
step()
dist.recv(ones(), 1 - rank)  # here
dist.send(ones(), 1 - rank)
""",
        world_size=2,
    ),
    _case(
        "tags that differ",
        (0, 1),
        "messages in a circle",
        """
for i in range(3):
    if rank == 0:
        dist.send(ones(), 1, tag=i)  # here
    else:
        dist.recv(ones(), 0, tag=i if i < 2 else 7)  # here
""",
        world_size=2,
    ),
    _case(
        "a microbatch too few",
        (0,),
        "ended|did not come",
        """
for i in range(3):
    if rank == 0 and i < 2:
        dist.send(ones(), 1)  # here
    if rank == 1:
        dist.recv(ones(), 0)
""",
        world_size=2,
    ),
    _case(
        "a stage of a pipeline that stands",
        (1,),
        "outside a collective",
        """
for i in range(4):
    if rank > 0:
        dist.recv(ones(), rank - 1)
    if rank == 1 and i == 2:
        time.sleep(60)  # here
    if rank < 2:
        dist.send(ones(), rank + 1)
""",
    ),
]

_OUTSIDE = [
    _case(
        "new_group in another order",
        (2,),
        "outside a collective",
        """
step()
if rank == 2:
    dist.new_group([1, 2])  # here
    dist.new_group([0, 1])
else:
    dist.new_group([0, 1, 2])
    dist.new_group([1, 2])
""",
    ),
    _case(
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
    _case(
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
    _case(
        "a key of the store that nobody sets",
        (0, 1, 2),
        "outside a collective",
        """
step()
dist.distributed_c10d._get_default_store().get("ready")  # here
""",
    ),
    _case(
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
    _case(
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
    _case(
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
    _case(
        "an object that is broadcast on some ranks",
        (2,),
        "other collective",
        """
for i in range(2):
    step()
if rank == 2:
    step()  # here
else:
    dist.broadcast_object_list([{"a": 1}], src=0)
""",
    ),
    _case(
        "a checkpoint that one rank does not save",
        (0,),
        "other collective",
        """
import torch.distributed.checkpoint as dcp
step()
if rank == 0:
    step()  # here
else:
    dcp.save({"x": ones()}, checkpoint_id=folder + "/dcp")
""",
    ),
    _case(
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
    _case(
        "all ranks sleep",
        (0, 1, 2),
        "outside a collective",
        """
step()
time.sleep(60)  # here
""",
    ),
    _case(
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
]

CASES = [*_BEHAVES, *_MISSING, *_OTHERWISE, *_MESSAGES, *_OUTSIDE]
