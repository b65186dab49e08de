"""Ranks that do not come to a collective: they left, raised, were killed, or do something else."""

from __future__ import annotations

from hang_cases.case import case

MISSING = [
    case(
        "a rank has one batch less",
        (2,),
        "ended",
        """
for i in range(3 if rank == 2 else 4):
    dist.all_reduce(ones())  # here
""",
    ),
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
        "a hook of backward raises",
        (1,),
        "raised",
        """
def hook(gradient):
    if rank == 1 and i == 2:
        raise ValueError("gradient of 3")  # here
    return gradient
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for i in range(4):
    y = model(torch.ones(2, 4))
    y.register_hook(hook)
    y.sum().backward()
""",
    ),
    case(
        "a rank is killed while it waits",
        (2,),
        "killed",
        """
import threading
for i in range(2):
    dist.all_reduce(ones())
if rank == 1:
    time.sleep(3)
if rank == 2:
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
dist.all_reduce(ones(64))  # here
""",
    ),
    case(
        "a rank is stopped before its last call",
        (0,),
        "stopped",
        """
for i in range(3):
    dist.all_reduce(ones())  # here
    if rank == 0 and i == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
""",
        world_size=2,
    ),
    case(
        "a worker of a data loader is killed",
        (1,),
        "raised",
        """
class Kills(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        if rank == 1 and index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(4)
for batch in torch.utils.data.DataLoader(Kills(), num_workers=1):  # here
    dist.all_reduce(batch)
""",
    ),
    case(
        "a program that another process holds up",
        (2,),
        "outside a collective",
        """
import subprocess
step()
if rank == 2:
    subprocess.run(["sleep", "60"])  # here
step()
""",
    ),
    case(
        "an exception that is caught, and the collective with it",
        (1,),
        "other collective|ended",
        """
for i in range(4):
    try:
        if rank == 1 and i == 2:
            raise ValueError("bad sample")
        dist.all_reduce(ones())  # here
    except ValueError:
        pass
    dist.broadcast(ones(4), 0)  # here
""",
    ),
    case(
        "gradients that one rank does not synchronize",
        (1,),
        "ended",
        """
import contextlib
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for i in range(4):
    with model.no_sync() if rank == 1 and i == 2 else contextlib.nullcontext():
        model(torch.ones(2, 4)).sum().backward()  # here
""",
    ),
]
