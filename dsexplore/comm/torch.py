"""DeepSpeed's ``deepspeed.comm.torch``, where its programs import it: `TorchBackend`, and switches as flags."""

import sys

from dsexplore._internal.comm import torch_backend
from dsexplore._internal.comm.torch_backend import *  # noqa: F403 - for type checkers

sys.modules[__name__] = torch_backend  # whose flags can be set
