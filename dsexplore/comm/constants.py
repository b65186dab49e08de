"""DeepSpeed's ``deepspeed.comm.constants``, where programs for DeepSpeed import it."""

from dsexplore._internal.comm.constants import *  # noqa: F403
