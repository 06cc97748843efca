"""Create the input of this example: sentences, a small encoder and a small judge.

Both models have seeded random weights, so their results are meaningless.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
import transformers
from judge import WIDTH, Judge
from tokenizers import Tokenizer, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
WORDS = ["a", "the", "small", "large", "red", "green", "house", "tree", "bird", "runs", "sings"]
SENTENCES, FILES = 400, 2


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    write_sentences(HERE / "data")
    save_encoder(HERE / "encoder")
    (HERE / "model").mkdir(exist_ok=True)
    torch.save(Judge().state_dict(), HERE / "model" / "judge.pt")


def write_sentences(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(FILES):
        rows = [
            {
                "id": f"{number}-{row}",
                "text": " ".join(random.choices(WORDS, k=random.randint(3, 9))),
            }
            for row in range(SENTENCES // FILES)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (directory / f"sentences-{number}.jsonl").write_text(lines)


def save_encoder(directory: Path) -> None:
    """Save a BERT model with one layer and one token per word."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(directory)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=WIDTH, intermediate_size=2 * WIDTH,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    transformers.BertModel(config).eval().save_pretrained(directory)


if __name__ == "__main__":
    main()
