"""Programs that do not hang: nobody is to be accused."""

from __future__ import annotations

from hang_cases.case import case

NOT_HUNG = [
    case(
        "nothing hangs",
        (),
        "none",
        """
for _ in range(3):
    step()
""",
    ),
    case(
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
    case(
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
    case(
        "a rank writes a file while the others wait",
        (),
        "none",
        """
for i in range(3):
    step()
    if rank == 0:
        time.sleep(2.5)
        open(folder + "/step.txt", "w").write(str(i))
    dist.barrier()
""",
    ),
    case(
        "ranks that send to each other in turn",
        (),
        "none",
        """
for i in range(3):
    for source in range(world_size):
        if rank == source:
            for peer in range(world_size):
                if peer != rank:
                    dist.send(ones(), peer)
        else:
            dist.recv(ones(), source)
""",
    ),
]
