"""DeepSpeed's ``deepspeed.comm.reduce_op``, where programs for DeepSpeed import it."""

from dsexplore._internal.comm.reduce_op import *  # noqa: F403
