"""Create the input of this example: images of coloured shapes, and a small CLIP model.

If scikit-image is installed, some of its photographs are added. The model needs no download,
because it has seeded random weights.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SIZE = 64
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee", "rocket", "immunohistochemistry", "retina")
SPECIAL = ("[UNK]", "[BOS]", "[EOS]")
WORDS = (*SPECIAL, "a", "on", "photograph", "of", "an", "astronaut", "cat", "cup", "coffee")


def main() -> None:
    random.seed(0)
    torch.manual_seed(0)
    write_shapes(HERE / "data")
    write_photographs(HERE / "data" / "photograph")
    write_model(HERE / "model")


def write_shapes(directory: Path) -> None:
    """Write an image of each shape in each colour, on a background of another colour."""
    for shape in SHAPES:
        folder = directory / shape
        folder.mkdir(parents=True, exist_ok=True)
        for number, colour in enumerate(COLOURS):
            background = random.choice([other for other in COLOURS if other != colour])
            draw(shape, colour, background).save(folder / f"{number:03d}.png")


def draw(shape: str, colour: str, background: str) -> Image.Image:
    image = Image.new("RGB", (SIZE, SIZE), background)
    pen = ImageDraw.Draw(image)
    radius = random.randint(12, 24)
    x, y = (random.randint(radius, SIZE - radius) for _ in range(2))
    box = [x - radius, y - radius, x + radius, y + radius]
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], colour)
    return image


def write_photographs(directory: Path) -> None:
    try:
        from skimage import data
    except ImportError:
        print("no photographs: install scikit-image to add some")
        return
    directory.mkdir(parents=True, exist_ok=True)
    for name in PHOTOGRAPHS:
        try:
            Image.fromarray(getattr(data, name)()).save(directory / f"{name}.jpg", quality=90)
        except OSError:  # scikit-image downloads some photographs
            print(f"no photograph '{name}' here")


def write_model(directory: Path) -> None:
    words = tokenizer()
    tower = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tower["intermediate_size"] = 128
    text = {**tower, "vocab_size": len(words), "max_position_embeddings": 32}
    text |= {"bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id}
    image = {**tower, "image_size": SIZE, "patch_size": 16}
    config = CLIPConfig(text_config=text, vision_config=image, projection_dim=32)
    CLIPModel(config).save_pretrained(directory)
    words.save_pretrained(directory)
    size = {"height": SIZE, "width": SIZE}
    CLIPImageProcessor(size=size, crop_size=size).save_pretrained(directory)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word that describes these images."""
    vocabulary = {word: number for number, word in enumerate((*WORDS, *SHAPES, *COLOURS))}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, vocabulary[token]) for token in ("[BOS]", "[EOS]")]
    model.post_processor = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        **{"unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[EOS]"},
        model_max_length=32,
    )


if __name__ == "__main__":
    main()
