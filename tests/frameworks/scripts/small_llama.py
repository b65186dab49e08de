"""A Llama small enough for a test, random token data, and a tokenizer made by hand: nothing is downloaded."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 128


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(config())


class Tokens(Dataset):
    """Random sequences of 16 tokens, each its own label."""

    def __init__(self, count: int = 64) -> None:
        self.tokens = torch.randint(1, VOCABULARY, (count, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{number}": number + 3 for number in range(VOCABULARY - 3)}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
