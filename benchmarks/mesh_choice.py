"""How long it takes to compare the meshes of Llama 3 70B on 64 ranks. Run: python benchmarks/mesh_choice.py

Every factorisation of 64 over pp, dp and tp, of which each rank of a kind is traced on fake tensors. Goal: 60 s on
two processors that do nothing else. Of a pipeline's microbatches those are traced that the others repeat.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping

from llama_layers import LLAMA_3_70B
from parallel_llama import Run, build
from torch.distributed.device_mesh import DeviceMesh

import dsexplore

RANKS, SEQUENCE, GLOBAL_BATCH = 64, 8192, 64


def step(mesh: DeviceMesh) -> Callable[[], None]:
    """One step with full checkpointing, of one global batch on every mesh; a pipeline has a microbatch per sample."""
    names = mesh.mesh_dim_names or ()
    sizes = dict(zip(names, mesh.shape, strict=True))
    samples = GLOBAL_BATCH // sizes["dp"]
    run = Run(SEQUENCE, 1 if sizes["pp"] > 1 else samples, samples if sizes["pp"] > 1 else 1, checkpointing="full")
    return build(LLAMA_3_70B, run, mesh)


def keep(sizes: Mapping[str, int]) -> bool | str:
    """Leave out what the model cannot be divided into."""
    if LLAMA_3_70B.layers % sizes["pp"]:
        return f"{LLAMA_3_70B.layers} layers do not divide into {sizes['pp']} stages of as many each"
    samples = GLOBAL_BATCH // sizes["dp"]
    if sizes["pp"] > samples:
        return f"{samples} microbatches do not fill {sizes['pp']} stages"
    return True


def main() -> None:
    """Compare, and print the ranking and the time."""
    start = time.perf_counter()
    compared = dsexplore.compare_meshes(
        step,
        RANKS,
        "dgx-h100",
        axes=("pp", "dp", "cp", "tp"),
        keep=lambda sizes: "context parallelism is not asked for" if sizes["cp"] > 1 else keep(sizes),
    )
    print(compared._repr_mimebundle_()["text/plain"])
    for one in compared.candidates:
        if one.dropped and "context" not in one.dropped:
            print(f"  {one.mesh}: {one.dropped}")
    seconds, load = time.perf_counter() - start, os.getloadavg()[0]
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{seconds:.0f} s, of which {own.ru_utime + own.ru_stime:.0f} s of this process's own work; load {load:.1f}")


if __name__ == "__main__":
    main()
