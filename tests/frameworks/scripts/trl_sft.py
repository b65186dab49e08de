"""TRL's SFTTrainer on texts, with a tokenizer made by hand."""

import random
import tempfile

import small_llama
import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

random.seed(0)
texts = [" ".join(f"w{random.randrange(100)}" for _ in range(12)) for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        max_length=16,
        gradient_checkpointing=False,
    )
    SFTTrainer(
        model=small_llama.model(),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=small_llama.tokenizer(),
    ).train()
