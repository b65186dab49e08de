"""transformers' Trainer; a launcher of several ranks makes it use DistributedDataParallel."""

import tempfile

import small_llama
import torch
from transformers import Trainer, TrainingArguments

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(model=small_llama.model(), args=arguments, train_dataset=small_llama.Tokens()).train()
