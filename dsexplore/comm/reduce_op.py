"""Names of ``deepspeed.comm.reduce_op``, for programs that are written for DeepSpeed."""

from dsexplore._internal.comm.reduce_op import *  # noqa: F403
