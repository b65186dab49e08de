"""The one room that names what is not public in torch: private names, replaced functions, signatures relied on.

Each module here covers one subject of torch (process groups, DTensor, FSDP, fake tensors, …) and answers in this
project's words, so that what changes between versions of torch changes here alone. A name that the installed torch
does not have is no error at import: what needs it raises `UsageError` when it is used (see `names`).

``python -m dsexplore._internal.torch_internals`` lists which of these names an installed torch lacks or has changed.
"""
