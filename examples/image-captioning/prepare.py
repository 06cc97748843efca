"""Create the input of this example: images of circles, and a small LLaVA with random weights."""

from __future__ import annotations

import string
from pathlib import Path

import torch
import transformers
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HERE = Path(__file__).resolve().parent
SIDE, PATCH = 32, 8
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<image>")
COLOURS = ("red", "green", "blue", "orange", "black", "white")
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2, "initializer_range": 0.5}  # fmt: skip
CHAT = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: "
    "{% for part in message.content %}{% if part.type == 'image' %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def main() -> None:
    torch.manual_seed(0)
    write_pictures(HERE / "data")
    save_model(HERE / "model")


def write_pictures(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for number, colour in enumerate(COLOURS):
        image = Image.new("RGB", (160, 120), "gray")
        box = [20 + 10 * number, 20, 80 + 10 * number, 80]
        ImageDraw.Draw(image).ellipse(box, fill=colour)
        image.save(directory / f"{colour}.png")


def save_model(directory: Path) -> None:
    words = [*SPECIAL, *string.printable]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>",
        eos_token="<eos>", additional_special_tokens=["<image>"],
    )  # fmt: skip
    size = {"height": SIDE, "width": SIDE}
    transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor(size=size, crop_size=size),
        tokenizer=fast, patch_size=PATCH, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=CHAT,
    ).save_pretrained(directory)  # fmt: skip
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SMALL, image_size=SIDE, patch_size=PATCH),
        text_config=transformers.LlamaConfig(
            **SMALL, vocab_size=len(words), max_position_embeddings=512, bos_token_id=2,
            eos_token_id=3,
        ),
        image_token_index=words.index("<image>"), vision_feature_layer=-1,
        vision_feature_select_strategy="default",
    )  # fmt: skip
    transformers.LlavaForConditionalGeneration(config).save_pretrained(directory)


if __name__ == "__main__":
    main()
