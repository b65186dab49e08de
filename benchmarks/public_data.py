"""Small stand-ins of the data sets that public scripts read: noise of the right shapes, in the files that they want."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image
from safetensors.numpy import save_file

_CIFAR_LABELS = {"cifar-10-batches-py": (["labels"], 10), "cifar-100-python": (["fine_labels", "coarse_labels"], 100)}


def make_data(root: Path) -> None:
    """Write all stand-ins below a folder, from which scripts are run."""
    random = np.random.default_rng(0)
    for folder in ("data", "mnist_data", "dataset", "datasets"):
        _mnist(root / folder / "MNIST" / "raw", random)
    _cifar(root / "data", random)
    _images(root / "imagenet", random)
    _tokens(root, random)
    _text_models(root, random)


def _mnist(folder: Path, random: Generator) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train", 1024), ("t10k", 256)):
        images = random.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = random.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, count, 28, 28) + images.tobytes())
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())


def _cifar(folder: Path, random: Generator) -> None:
    files = {
        "cifar-10-batches-py": [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"],
        "cifar-100-python": ["train", "test"],
    }
    for name, batches in files.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        keys, classes = _CIFAR_LABELS[name]
        for batch in batches:
            content = {"data": random.integers(0, 255, (256, 3072), dtype=np.uint8)}
            content |= {key: random.integers(0, classes, 256).tolist() for key in keys}
            (folder / name / batch).write_bytes(pickle.dumps(content))
        names = [str(number) for number in range(classes)]
        for file, key in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
            (folder / name / file).write_bytes(pickle.dumps({key: names}))


def _images(folder: Path, random: Generator) -> None:
    for split, count in (("train", 32), ("val", 16)):
        for name in ("one", "two"):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{name}_{number}.jpg")


def _tokens(root: Path, random: Generator) -> None:
    """Write tokens as nanoGPT reads them (``data/tokens``), and as llm.c does (``tokens.bin``)."""
    folder = root / "data" / "tokens"
    folder.mkdir(parents=True)
    for split in ("train", "val"):
        random.integers(0, 256, 20_000, dtype=np.uint16).tofile(folder / f"{split}.bin")
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 100_000
    tokens = random.integers(0, 50257, 100_000, dtype=np.uint16)
    (root / "tokens.bin").write_bytes(header.tobytes() + tokens.tobytes())


def _text_models(root: Path, random: Generator) -> None:
    """Write a text data set, and configurations of small models with a tokenizer."""
    (root / "text").mkdir()
    lines = [json.dumps({"text": "one two three four five six seven eight nine ten " * 40}) for _ in range(64)]
    (root / "text" / "train.jsonl").write_text("\n".join(lines))
    words = ["<unk>", "<s>", "</s>", *["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    gpt2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_head": 4, "n_embd": 64}
    gpt2 |= {"vocab_size": 64, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 2}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64}
    llama |= {"intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}
    llama |= {"max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    qwen2 = llama | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    for name, config in (("gpt2", gpt2), ("llama", llama), ("qwen2", qwen2)):
        folder = root / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "model_max_length": 256}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _picotron(root, random)


def _picotron(root: Path, random: Generator) -> None:
    """Write weights of the small Llama as picotron reads them, and one configuration for each of its plans."""
    layer = {f"self_attn.{name}_proj": (64, 64) for name in "qkvo"}
    layer |= {"mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128)}
    layer |= {"input_layernorm": (64,), "post_attention_layernorm": (64,)}
    shapes = {"model.embed_tokens": (64, 64), "model.norm": (64,), "lm_head": (64, 64)}
    shapes |= {f"model.layers.{number}.{name}": shape for number in range(2) for name, shape in layer.items()}
    weights = {f"{name}.weight": random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    (root / "hf_model_safetensors").mkdir()
    save_file(weights, root / "hf_model_safetensors" / "model.safetensors")
    plain = {"seed": 1, "learning_rate": 1e-3, "total_train_steps": 3, "seq_length": 64, "micro_batch_size": 1}
    plain |= {"gradient_accumulation_steps": 2, "num_samples": 64, "max_tokens": None}
    model = {"name": str(root / "llama"), "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    model |= {"dtype": "bfloat16", "use_flash_attention": True, "use_fused_adam": True}
    for plan in ("dp", "tp", "pp", "cp"):
        sizes = {f"{axis}_size": 1 for axis in ("tp", "cp", "pp", "dp")}
        sizes |= {"dp_size": 2, f"{plan}_size": 4 if plan == "dp" else 2}
        settings = {
            "distributed": {**sizes, "pp_engine": "1f1b", "backend": "nccl", "use_cpu": False},
            "model": model,
            "training": plain,
            "dataset": {"name": str(root / "text"), "subset_name": None, "num_workers": 0, "num_proc": 1},
            "checkpoint": {"save_dir": "ckpt", "save_frequency": 300, "load_path": ""},
            "logging": {"use_wandb": False, "project_name": "picotron", "run_name": None},
            "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "1"},
        }
        settings["environment"]["HF_TOKEN"] = "none"
        (root / f"picotron_{plan}.json").write_text(json.dumps(settings))
