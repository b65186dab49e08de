"""What `dsexplore run --fake` takes for a step of a 70B model on 4,096 ranks. Run: python benchmarks/large_models.py"""

from __future__ import annotations

from measured_run import run

RANKS = 4096
ROWS = {
    "FSDP2 over all ranks, torch": ("--world-size", str(RANKS), "--fake", "train_llama_70b.py"),
    "HSDP and tensor parallel, torch": ("--world-size", str(RANKS), "--fake", "train_llama_70b.py", "hsdp"),
    "FSDP2 over all ranks, transformers": ("--world-size", str(RANKS), "--fake", "train_transformers_70b.py"),
}


def main() -> None:
    """Print one line per row of a table, with what its trace says."""
    for name, arguments in ROWS.items():
        measured = run(*arguments)
        (summary,) = [line for line in measured.output.splitlines() if line.startswith("Trace: ")]
        print(f"{name}: {measured}\n  {summary.removeprefix('Trace: ')}", flush=True)


if __name__ == "__main__":
    main()
