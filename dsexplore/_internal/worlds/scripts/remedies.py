"""`remedy_for`: what to do about an error that ends a script because its simulated world lacks something."""

from __future__ import annotations

import re

from dsexplore._internal.worlds.extensions.registry import WITHOUT_STAND_IN, registered_package

_WITHOUT_CUDA = re.compile("cuda|nvidia|accelerator device|dummy base class", re.IGNORECASE)
"""What torch's many errors say where a program asks for CUDA and there is none; they differ by build and version."""
_OF_GPUS = re.compile(r"Could not run '(aten::\w+)' with arguments from the 'CPU' backend")
"""The error of torch for ops with GPU kernels only."""


def remedy_for(error: BaseException, *, has_cuda: bool, rank: int, is_alone: bool) -> str:
    """Return a note for the trace of a script that an error ended; empty if the error explains itself.

    Args:
        error: what the script raised.
        has_cuda: whether the CPU stands in for GPUs.
        rank: the one that was played.
        is_alone: whether no other rank of the world is played.
    """
    if not has_cuda and not isinstance(error, OSError) and _WITHOUT_CUDA.search(str(error)):
        return (
            "the script asks for a GPU, and in this world there is none: leave out --hardware cpu (hardware='cpu'), or "
            "give the script its own options for training on CPUs"
        )
    kernel = _OF_GPUS.match(str(error)) if isinstance(error, NotImplementedError) and has_cuda else None
    if kernel:
        return (
            f"the script calls {kernel[1]} itself, which has no kernel for the CPU that stands in for GPUs: run it "
            "with --fake (fake=True), which needs shapes alone"
        )
    missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing == "triton":
        return "torch's builds for CUDA bring triton, this one does not: pip install triton, which needs no GPU"
    if missing == "torchcomms":
        return "torchcomms is not recorded: give the script the option that takes torch.distributed's own groups"
    if registered_package(missing) and not has_cuda:
        return f"a world of GPUs has a stand-in for {missing}: leave out --hardware cpu (hardware='cpu')"
    if missing in WITHOUT_STAND_IN or registered_package(missing):
        return (
            f"{missing} is an extension for GPUs, which cannot run here: give the script the option that takes torch's "
            "own form in its place, such as attn_implementation='sdpa'"
        )
    if isinstance(error, FileNotFoundError) and rank and is_alone:
        return (
            f"the script looked for {error.filename or 'a file'}, which is not there: what rank 0 would write, nobody "
            f"writes while rank {rank} is played alone; play --rank 0 first, in the same folder"
        )
    return ""
