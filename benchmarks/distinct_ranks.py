"""How long ``--ranks distinct`` takes for a 405B-like job on 16,384 ranks, and how much memory.

The goal: at most 60 s on two cores that do nothing else, and 4 GiB in all processes together. Where other programs run,
the time of CPU, halved, is what two free cores would take at least. Run: python benchmarks/distinct_ranks.py
"""

from __future__ import annotations

from measured_run import run

MESH = "pp=16,dp=128,tp=8"


def main() -> None:
    """Print one line for the whole command, and what it showed."""
    measured = run("--mesh", MESH, "--fake", "--ranks", "distinct", "train_pipeline.py")
    print(f"--ranks distinct of Llama 3 405B on {MESH}: {measured}")
    print("\n".join(line for line in measured.output.splitlines() if line.startswith(("Trace", "  note: "))))


if __name__ == "__main__":
    main()
