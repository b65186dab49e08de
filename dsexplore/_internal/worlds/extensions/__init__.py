"""Stand-ins for GPU extensions that are not installed: plain torch with the shapes, dtypes and gradients of theirs.

A program that imports ``flash_attn`` at its top runs where no such package can be built. `registry` holds what stands
in for which package. `stand_in_modules` lets ``import`` find it while a simulated world of GPUs is open, unless the
program can do without the package and has an alternative of its own (`needed_imports`).
"""
