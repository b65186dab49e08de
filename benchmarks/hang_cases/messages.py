"""Sends and receives that do not meet."""

from __future__ import annotations

from hang_cases.case import case

MESSAGES = [
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
        "a receive from a wrong peer",
        (1,),
        "other peer",
        """
for i in range(4):
    if rank == 0:
        dist.send(ones(), 1)
    if rank == 1:
        dist.recv(ones(), 2 if i == 3 else 0)  # here
    dist.barrier()
""",
    ),
    case(
        "a receive from a rank that has ended",
        (1,),
        "other peer",
        """
for i in range(4):
    if rank == 0:
        dist.send(ones(), 1)
    if rank == 1:
        dist.recv(ones(), 2 if i == 3 else 0)  # here
""",
    ),
    case(
        "a send to a wrong peer",
        (0,),
        "other peer",
        """
for i in range(4):
    if rank == 0:
        dist.send(ones(), 2 if i == 3 else 1)  # here
    if rank == 1:
        dist.recv(ones(), 0)
    dist.barrier()
""",
    ),
    case(
        "the first receive is from a wrong peer",
        (0, 1),
        "other peer|unknown|messages in a circle",
        """
step()
if rank == 0:
    dist.send(ones(), 1)  # here
if rank == 1:
    dist.recv(ones(), 2)  # here
""",
    ),
    case(
        "a batch of messages that leaves one out",
        (2,),
        "other collective|did not come|messages in a circle|ended",
        """
for i in range(4):
    calls = [dist.P2POp(dist.isend, ones(), (rank + 1) % 3), dist.P2POp(dist.irecv, ones(), (rank - 1) % 3)]
    if rank == 2 and i == 3:
        calls.pop(0)
    for work in dist.batch_isend_irecv(calls):  # here
        work.wait()
""",
    ),
    case(
        "a stage that sleeps while its gatherer waits",
        (1,),
        "outside a collective",
        """
for i in range(3):
    if rank == 0:
        for peer in range(1, 4):
            dist.recv(ones(), peer)
    else:
        if rank == 1 and i == 1:
            time.sleep(60)  # here
        dist.send(ones(), 0)
""",
        world_size=4,
    ),
]
