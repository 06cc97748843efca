"""Create the input of this example: a few lines, and a GPT-2 of four layers with random weights."""

from __future__ import annotations

import string
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
LINES = ("once upon a time", "the quick brown fox", "to be or not to be", "it was a dark night")


def main() -> None:
    torch.manual_seed(0)
    (HERE / "data").mkdir(exist_ok=True)
    (HERE / "data" / "lines.txt").write_text("".join(line + "\n" for line in LINES))
    save_model(HERE / "model")


def save_model(directory: Path) -> None:
    """Save a GPT-2 model with one token per character."""
    vocabulary = {token: number for number, token in enumerate(["<eos>", *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<eos>"
    ).save_pretrained(directory)
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary), n_positions=128, n_embd=64, n_layer=4, n_head=2,
        bos_token_id=0, eos_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)


if __name__ == "__main__":
    main()
