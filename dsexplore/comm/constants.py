"""Names of ``deepspeed.comm.constants``, for programs that are written for DeepSpeed."""

from dsexplore._internal.comm.constants import *  # noqa: F403
