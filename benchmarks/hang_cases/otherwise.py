"""Ranks that call another collective than the others, or the same with another size, dtype, root or group."""

from __future__ import annotations

from hang_cases.case import case

_PAIR = """
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
"""

OTHERWISE = [
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
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
    case(
        "a barrier of another group",
        (2,),
        "other group order|other collective",
        """
for i in range(3):
    step()
dist.barrier(group=again if rank == 2 else None)  # here
""",
        before="again = dist.new_group([0, 1, 2])",
    ),
    case(
        "an object broadcast from another rank",
        (2,),
        "other root",
        """
for i in range(3):
    step()
objects = [{"rank": rank}]
dist.broadcast_object_list(objects, src=1 if rank == 2 else 0)  # here
step()
time.sleep(60)
""",
    ),
    case(
        "a barrier that one rank alone calls at the end",
        (0,),
        "other collective",
        """
for i in range(3):
    step()
if rank == 0:
    dist.barrier()  # here
""",
    ),
    case(
        "a step that one rank evaluates instead",
        (3,),
        "other collective|other size",
        """
for i in range(4):
    if rank == 3 and i == 3:
        dist.all_gather_into_tensor(torch.empty(16), ones(4))  # here
    else:
        dist.all_reduce(ones(1024))
        dist.all_reduce(ones(8))
""",
        world_size=4,
    ),
]
