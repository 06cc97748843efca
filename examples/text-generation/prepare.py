"""Create the input of this example: topics, and a small language model with random weights."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
TOPICS = ("rain", "trains", "bread", "the sea", "numbers", "night")
STYLES = ("plainly", "in verse")
SPECIAL = ("<unk>", "<bos>", "<eos>")
CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def main() -> None:
    torch.manual_seed(0)
    rows = [{"topic": topic, "style": style} for topic in TOPICS for style in STYLES]
    (HERE / "data").mkdir(exist_ok=True)
    (HERE / "data" / "topics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_model(HERE / "model")


def save_model(directory: Path) -> None:
    """Save a Llama model with one token per character."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
        chat_template=CHAT,
    ).save_pretrained(directory)  # fmt: skip
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main()
