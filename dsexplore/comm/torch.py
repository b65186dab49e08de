"""`TorchBackend`, where programs for DeepSpeed import it."""

from dsexplore._internal.comm.torch_backend import TorchBackend as TorchBackend
