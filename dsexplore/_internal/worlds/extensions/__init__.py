"""Stand-ins for GPU extensions that are not installed: plain torch with the same names, shapes, dtypes and gradients.

So a program that imports ``flash_attn`` runs on machines where the package cannot be built. `registry` lists the
packages that have a stand-in. `stand_in_modules` lets ``import`` find it while a simulated world of GPUs is open,
unless the program has an alternative for the missing package (`needed_imports`).
"""
