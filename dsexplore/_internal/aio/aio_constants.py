"""Names and defaults of the ``"aio"`` block of a DeepSpeed config, and units of direct I/O."""

from typing import Final

AIO: Final = "aio"
AIO_BLOCK_SIZE: Final = "block_size"
AIO_BLOCK_SIZE_DEFAULT: Final = 1048576
AIO_QUEUE_DEPTH: Final = "queue_depth"
AIO_QUEUE_DEPTH_DEFAULT: Final = 8
AIO_THREAD_COUNT: Final = "thread_count"
AIO_THREAD_COUNT_DEFAULT: Final = 1
AIO_INTRA_OP_PARALLELISM: Final = "intra_op_parallelism"
AIO_INTRA_OP_PARALLELISM_DEFAULT: Final = 1
AIO_SINGLE_SUBMIT: Final = "single_submit"
AIO_SINGLE_SUBMIT_DEFAULT: Final = False
AIO_OVERLAP_EVENTS: Final = "overlap_events"
AIO_OVERLAP_EVENTS_DEFAULT: Final = True
AIO_USE_GDS: Final = "use_gds"
AIO_USE_GDS_DEFAULT: Final = False

AIO_FORMAT: Final = """
"aio": {
  "block_size": 1048576,
  "queue_depth": 8,
  "thread_count": 1,
  "single_submit": false,
  "overlap_events": true
}
"""

SECTOR: Final = 512
"""Bytes of the smallest unit that a disk addresses; block sizes are multiples of it."""

PAGE: Final = 4096
"""Bytes of a page of the page cache. Direct requests begin and end at multiples of it, so that they share no page with
the unaligned head or tail of a transfer, which goes through the page cache."""
