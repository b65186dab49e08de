"""Names of ``deepspeed.comm.torch``, for programs that are written for DeepSpeed: `TorchBackend` and its flags."""

import sys

from dsexplore._internal.comm import torch_backend
from dsexplore._internal.comm.torch_backend import *  # noqa: F403 - for type checkers

sys.modules[__name__] = torch_backend  # programs set flags of this module
