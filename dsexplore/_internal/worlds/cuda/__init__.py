"""A GPU that is not there: `stand_in.cuda_stand_in` lets ``cuda`` mean the CPU, and a script find what it expects.

Fake ``cuda`` tensors are no way: their autograd raises on a CPU build, and on a CUDA build without a GPU. So all memory
is the CPU's (or a fake tensor mode's), Python is answered as on a GPU, and C++ sees CPU tensors. torch's own Python is
answered like the script, so it goes the ways that it goes on GPUs, and what it sends is what the cluster would send.

Where torch's way forks, and what is done there:

| what a script or torch asks for | what happens | where |
|---|---|---|
| ``device="cuda"``, ``.to(0)``, ``.cuda()``, ``torch.device(0)`` | a CPU tensor, marked | `function_mode` |
| ``tensor.device``, ``is_cuda``, ``type()``, ``repr`` | the mark; a DTensor's: its mesh's, or CPU | `function_mode` |
| moving to another device, ``.cpu()`` | a copy, as between devices; moving to where it is, itself | `function_mode` |
| ``with torch.device("cuda")``, ``set_default_device`` | likewise; restored when the block ends | `function_mode` |
| hooks and autograd functions in backward, threads | the function mode is entered there too | `function_mode` |
| gradients that hooks and autograd functions get | marked | `gradients` |
| parameters, ``torch.cuda.FloatTensor``, ``record_stream``, fake tensors | marked, answered or ignored | `tensors` |
| ``torch.cuda.*``, ``torch.accelerator.*`` | torch's Python, over functions of ``torch._C`` made here | `torch_cuda` |
| streams, events | run at once, in order; elapsed time is this machine's | `streams` |
| memory figures | an estimate, which a warning says once | `gpu_memory` |
| ``nvidia-smi``, ``pynvml`` | the GPU asked for, with no memory in use | `gpu_sensors`, ``extensions`` |
| name, capability, memory, NCCL's version | those of the GPU asked for, from ``gpus/*.toml`` | `gpu` |
| seeds, generators, 16-byte states | the CPU's generator; a state names a point of it | `rng` |
| ``torch.autocast("cuda")`` | CPU autocast, with CUDA's list of ops (norms, sums … in fp32) | `autocast` |
| ``torch.load(map_location="cuda")`` | CPU memory, marked; files are saved as CPU tensors | `torch_load` |
| meshes of ``cuda``, groups of ``nccl`` | the mesh stays ``cuda``: ``S(0) → S(1)`` is an all_to_all | `nccl` |
| ``barrier(device_ids=...)``, ``ProcessGroupNCCL.Options`` | a barrier of a CPU tensor; kept | `nccl` |
| DTensor's random ops | one state, which the ranks agree on by a broadcast, as on GPUs | `nccl` |
| ``pin_memory``, ``save_on_cpu`` | nothing is pinned | `function_mode`, `tensors` |
| ``mm(..., out_dtype=...)`` and kin | computed in that dtype | `gpu_kernels` |
| ``sdpa_kernel(FLASH_ATTENTION)`` and kin | that kernel where the CPU has it, else torch's plain one | `refused` |
| FlexAttention and its block masks | torch's plain form, forward and backward | `flex_masks` |
| ``torch.compile`` | the code as it is written, said once | `refused` |
| CUDA graphs, Triton kernels, extensions, ``nn.DataParallel`` | one error that names it and the remedy | `refused` |
| an op of tensors on different devices | torch's error, for what a script forgot to move | `mixed_devices` |
| a tensor on the CPU in a group of ``nccl`` alone | torch's error, likewise | `sent_tensors` |
| ``pickle``, ``copy`` | the device is kept; what was pickled is loaded where a GPU is | `torch_load`, `tensors` |

What cannot be had: tensors that C++ hands to Python alone (an argument of a node's hook, results of ``torch.func``) are
on the CPU for who asks them; ``untyped_storage().device`` is the CPU; an op in place on a tensor of another device does
not raise; NumPy takes a tensor that is believed to be on a GPU; numbers drawn on ``cuda`` are of the CPU generator,
which Megatron warns of (CPU RNG state changed); what ``torch.save`` writes is a CPU tensor.
"""
