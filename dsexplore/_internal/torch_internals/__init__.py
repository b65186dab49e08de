"""The only room that uses torch's private names, replaces its functions, and relies on its private signatures.

Each module here covers one subject of torch (process groups, DTensor, FSDP, fake tensors, …) and has public functions
for it, so that a new version of torch requires changes only here. A name that the installed torch does not have is no
error at import; `UsageError` is raised when the name is used (see `names`).

``python -m dsexplore._internal.torch_internals`` lists which of these names an installed torch lacks or has changed.
"""
