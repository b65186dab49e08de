"""Recognize kinds of files that cannot be read, to tell the user what a file is and what to do instead."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress
from pathlib import Path

_LOOKED_AT = 1 << 18
"""Bytes at the beginning of a file that decide on its kind."""
_BY_SUFFIX = (
    ((".nsys-rep", ".qdrep"), "a report of Nsight Systems: profile the job with torch.profiler"),
    ((".ncu-rep",), "a report of Nsight Compute, which has kernels of one GPU: profile the job with torch.profiler"),
    ((".xplane.pb",), "a profile of XLA (XSpace protobuf): export it as JSON"),
)
_BY_BEGINNING = (
    (b"SQLite format 3\0", "an SQLite database, as Nsight Systems exports: profile the job with torch.profiler"),
    (b"PK\x03\x04", "a zip archive, as torch.save also writes: unpack it, and give the files in it"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it, or pack it with gzip"),
    (b"\xfd7zXZ", "compressed with xz: unpack it, or pack it with gzip"),
    (b"BZh", "compressed with bzip2: unpack it, or pack it with gzip"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "an array of NumPy's"),
    (b"\x7fELF", "a program or library"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF document"),
    (b"<!DOCTYPE", "a web page: give the file that it was made from"),
    (b"<html", "a web page: give the file that it was made from"),
)
_JSON_KEYS = (
    (b'"workload_graph"', "a Chakra trace for simulators: give the execution trace that it was converted from"),
    (b'"cells"', "a notebook"),
    (b'"traceEvents"', "a profile under another name: load it alone, or without traces of dsexplore beside it"),
    (b'"resourceSpans"', "a trace of OpenTelemetry"),
)
_PICKLE_KEYS = (
    (
        b"device_traces",
        "a snapshot of CUDA's memory, which has no collectives: give it to dsexplore.cost.beside_snapshot",
    ),
    (b"storages", "a checkpoint of torch's"),
)


def is_tar(begin: bytes) -> bool:
    """Return True if `begin` is the beginning of a tar archive."""
    return begin[257:262] == b"ustar"


def unpacked_beginning(file: Path) -> bytes:
    """Return the beginning of a file's content, decompressed if it is gzipped; the file may be cut off.

    Raises:
        OSError: the file cannot be read.
    """
    with file.open("rb") as opened:
        begin = opened.read(_LOOKED_AT)
    if begin[:2] != b"\x1f\x8b":
        return begin
    with suppress(zlib.error):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS + 16).decompress(begin, _LOOKED_AT)
    return b""


def kind_not_read(file: Path) -> str:
    """Return the kind of an unsupported file, and the remedy: ``a Perfetto protobuf: export it as JSON``.

    Raises:
        OSError: the file cannot be read.
    """
    name = file.name.removesuffix(".gz")
    begin = unpacked_beginning(file)
    if by_suffix := next((kind for suffixes, kind in _BY_SUFFIX if name.endswith(suffixes)), ""):
        return by_suffix
    if not begin.strip():
        return "empty: copy or record it again"
    if by_beginning := next((kind for mark, kind in _BY_BEGINNING if begin.startswith(mark)), ""):
        return by_beginning
    if is_tar(begin):
        return "a tar archive: give the file itself, not its folder"
    if begin[:1] in b"{[":
        return next((kind for key, kind in _JSON_KEYS if key in begin), "JSON of none of the kinds that are read")
    if begin[:1] == b"\x80":
        return next((kind for key, kind in _PICKLE_KEYS if key in begin), "a pickle without entries and pg_config")
    if by_messages := _kind_of_protobuf(begin):
        return by_messages
    return "text" if _is_text(begin) else "of a kind that is not known"


def _kind_of_protobuf(begin: bytes) -> str:
    """Return the kind of a protobuf, which may be a Chakra or a Perfetto trace; empty if it is neither."""
    if re.match(rb"[\x03-\x7f]\x0a[\x01-\x20][0-9.]+|..?\x12.\x0a\x06schema", begin, re.DOTALL):
        return "a Chakra trace in protobuf: convert it with chakra_jsonizer, or give the execution trace of torch"
    at = messages = 0
    while at < len(begin) and messages < 4:
        length, after = _varint(begin, at + 1)
        if begin[at] != 0x0A or length is None:
            return ""
        at = after + length
        messages += 1
    return "a Perfetto protobuf: export it as JSON (trace_processor's traceconv json)" if messages else ""


def _varint(data: bytes, at: int) -> tuple[int | None, int]:
    """Return the variable-length integer at position `at`, None if there is none, and the position after it."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    return None, at


def _is_text(begin: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\r\n\f\x1b" for byte in begin)
