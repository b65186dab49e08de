"""Build the extension by which DeepSpeed reads and writes disks, which the tests of its states on a disk load."""

from deepspeed.ops.op_builder import AsyncIOBuilder

AsyncIOBuilder().load(verbose=False)
