"""Names of ``deepspeed.constants``, for programs that are written for DeepSpeed."""

from dsexplore._internal.launch_constants import CROSS_RANK as CROSS_RANK
from dsexplore._internal.launch_constants import CROSS_SIZE as CROSS_SIZE
from dsexplore._internal.launch_constants import INFERENCE_GENERIC_MODE as INFERENCE_GENERIC_MODE
from dsexplore._internal.launch_constants import INFERENCE_SPECIALIZED_MODE as INFERENCE_SPECIALIZED_MODE
from dsexplore._internal.launch_constants import LOCAL_RANK as LOCAL_RANK
from dsexplore._internal.launch_constants import TORCH_DISTRIBUTED_DEFAULT_PORT as TORCH_DISTRIBUTED_DEFAULT_PORT
from dsexplore._internal.launch_constants import __getattr__ as __getattr__
