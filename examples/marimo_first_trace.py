"""What a step sends, in marimo: ``marimo edit examples/marimo_first_trace.py``, or ``marimo run`` to look at it."""

import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import torch
    from torch import nn

    import dsexplore

    return dsexplore, nn, torch


@app.cell
def _(dsexplore, nn, torch):
    # marimo has no cell magics: dsexplore.commtrace around a cell's lines is what %%commtrace is in Jupyter.
    with dsexplore.commtrace(mesh="dp=4") as trace:
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
        model(torch.ones(16, 64)).sum().backward()
        trace.step()
    trace  # noqa: B018  # marimo shows the last expression
    return (trace,)


@app.cell
def _(trace):
    # The explorer: marimo shows its widget as one of its own.
    explorer = trace.explore()
    explorer  # noqa: B018  # marimo shows the last expression
    return (explorer,)


if __name__ == "__main__":
    app.run()
