"""Who is late: four real processes with a gloo group, of which one takes longer over its batch.

python examples/late_rank.py
"""

import dsexplore


def train() -> dsexplore.Trace:
    import time

    import torch
    import torch.distributed as dist

    import dsexplore

    gradient = torch.ones(1 << 16)
    with dsexplore.commtrace() as trace:
        for _ in range(6):
            time.sleep(0.25 if dist.get_rank() == 1 else 0.05)  # rank 1 reads from a slower disk
            dist.all_reduce(gradient)
    return trace


if __name__ == "__main__":
    traces = dsexplore.run_ranks(train, 4).values
    trace = dsexplore.Trace.merge(traces)
    print(trace.headline())
    print(trace.skew())
