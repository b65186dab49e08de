"""What torchtitan's debug models read, made by hand: a tokenizer of 2,000 words, and texts of these words."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

START, END = "<|begin_of_text|>", "<|end_of_text|>"


def torchtitan_arguments(model: str, folder: Path) -> tuple[str, ...]:
    """Write both into a folder, and return the arguments that name them, and those that make a debug run small."""
    words = [f"w{i}" for i in range(2_000)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate([START, END, *words])}, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([START, END])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": START, "eos_token": END}))
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    rows = [{"text": " ".join(words[i : i + 200])} for i in range(0, 1_600, 25)]
    (texts / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    return (
        *("--config", f"{model}_debugmodel", "--hf_assets_path", str(folder), "--dump_folder", str(folder / "output")),
        *("--dataloader.dataset_path", str(texts), "--training.local_batch_size", "1", "--training.seq_len", "256"),
        # The first is what dsexplore asks for; the other default needs a torch newer than 2.13.
        *("--training.disable_cuda_graphs", "--parallelism.spmd_backend", "partial_dtensor"),
    )
