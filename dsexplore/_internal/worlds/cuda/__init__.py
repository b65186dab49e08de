"""Stand-in for CUDA GPUs: inside `stand_in.cuda_stand_in`, ``cuda`` means the CPU, and GPU scripts run unchanged.

Fake ``cuda`` tensors would not do: their autograd raises on a CPU build, and on a CUDA build without a GPU. So all
memory is the CPU's (or that of a fake tensor mode). Python code sees tensors on a GPU; C++ code sees CPU tensors. The
Python code of torch sees a GPU too, takes the same branches as on GPUs, and sends what it would send on the cluster.

What happens where torch treats GPUs and CPUs differently:

| what a script or torch asks for | what happens | where |
|---|---|---|
| ``device="cuda"``, ``.to(0)``, ``.cuda()``, ``torch.device(0)`` | a CPU tensor, marked | `tensor_functions` |
| ``tensor.device``, ``is_cuda``, ``type()``, ``repr`` | the mark; for a DTensor its mesh's | `tensor_functions` |
| moving to another device, ``.cpu()`` | a copy; on the same device the tensor itself | `tensor_functions` |
| ``with torch.device("cuda")``, ``set_default_device`` | CPU tensors, marked; undone at the end | `function_mode` |
| hooks and autograd functions in backward, threads | the function mode is entered there too | `function_mode` |
| gradients that hooks and autograd functions get | marked | `gradients` |
| parameters, fake tensors, block masks of FlexAttention | marked | `tensor_construction` |
| ``torch.cuda.FloatTensor``, ``record_stream`` | makes marked CPU tensors; does nothing | `torch_cuda` |
| ``torch.cuda.*``, ``torch.accelerator.*`` | torch's Python, over functions of `cuda_driver` | `torch_cuda` |
| streams, events | run at once, in order; elapsed time is this machine's | `streams` |
| memory figures | an estimate; one warning says so | `gpu_memory` |
| ``nvidia-smi``, ``pynvml`` | describe the chosen GPU, no memory in use | `gpu_sensors`, ``extensions`` |
| name, capability, memory, NCCL's version | those of the chosen GPU, from ``gpus/*.toml`` | `gpu` |
| seeds, generators, 16-byte states | the CPU's generator; a state names a point of it | `rng` |
| ``torch.autocast("cuda")`` | CPU autocast, with CUDA's list of ops (norms, sums … in fp32) | `autocast` |
| ``torch.load(map_location="cuda")`` | CPU memory, marked; ``torch.save`` writes CPU tensors | `torch_load` |
| meshes of ``cuda``, groups of ``nccl`` | the mesh stays ``cuda``: ``S(0) → S(1)`` is an all_to_all | `nccl` |
| ``barrier(device_ids=...)``, ``ProcessGroupNCCL.Options`` | a barrier of a CPU tensor; stored only | `nccl` |
| DTensor's random ops | one state, broadcast to all ranks, as on GPUs | `nccl` |
| ``pin_memory``, ``save_on_cpu`` | nothing is pinned | `tensor_functions`, `tensor_construction` |
| ``mm(..., out_dtype=...)`` and similar products | computed in that dtype | `gpu_kernels` |
| ``sdpa_kernel(FLASH_ATTENTION)`` | that kernel where the CPU has it, else the math backend | `refused` |
| ``torch.compile`` | the code runs eagerly; one warning says so | `refused` |
| CUDA graphs, Triton kernels, extensions, ``nn.DataParallel`` | one error with a remedy | `refused` |
| an op of tensors on different devices | torch's error | `mixed_devices` |
| a CPU tensor in a group with the backend ``nccl`` | torch's error | `sent_tensors` |
| ``pickle``, ``copy`` | the device is kept | `torch_load`, `tensor_construction` |

Limits: a tensor that C++ hands to Python (an argument of a node's hook, a result of ``torch.func``) shows the CPU as
its device; so does ``untyped_storage()``. An in-place op on a tensor of another device does not raise. NumPy accepts a
marked tensor. Random numbers on ``cuda`` come from the CPU generator, about which Megatron warns (CPU RNG state
changed).
"""
