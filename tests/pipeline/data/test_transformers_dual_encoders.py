"""Two-tower models: embeddings of texts and images in one space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from batchinference.pipeline.errors import ModelLoad
from plugins.messages import Messages
from support.inputs.photographs import photograph
from support.models.run_transformers import column, loaded

TEXTS = ["a cat", "a cup of coffee on a table", ""]
IMAGES = [
    photograph("chelsea")[:60, :90],
    photograph("coffee")[:40, :50],
    photograph("astronaut")[:64, :64],
]
TOLERANCE = 1e-5


def embed(source: str, normalize: bool | None = None, **columns: list[Any]) -> np.ndarray:
    task = "feature-extraction" if "text" in columns else "image-feature-extraction"
    runtime = loaded(task, source, columns, normalize=normalize)
    found = runtime({name: column(values) for name, values in columns.items()})
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    return found


def features(source: str, **inputs: Any) -> np.ndarray:
    """Return the library's own embeddings, one row at a time."""
    model = transformers.AutoModel.from_pretrained(source).eval()
    if "text" in inputs:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        prepare, call, options = tokenizer, model.get_text_features, inputs["options"]
    else:
        processor = transformers.AutoImageProcessor.from_pretrained(source)
        prepare, call, options = processor, model.get_image_features, {}
    (rows,) = (inputs[name] for name in ("text", "image") if name in inputs)
    with torch.inference_mode():
        found = [call(**prepare(row, return_tensors="pt", **options)) for row in rows]
    return torch.cat([output.pooler_output for output in found]).numpy()


PADDED = {"padding": "max_length", "max_length": 64}


@pytest.mark.parametrize(("name", "width"), [("clip", 24), ("siglip", 32)])
@pytest.mark.parametrize("normalize", [None, True])
def test_texts_and_images_share_a_space(
    tiny: Callable[[str], str], name: str, width: int, normalize: bool | None
) -> None:
    source = tiny(name)
    options = PADDED if name == "siglip" else {}
    for found, expected in (
        (embed(source, normalize, text=TEXTS), features(source, text=TEXTS, options=options)),
        (embed(source, normalize, image=IMAGES), features(source, image=IMAGES)),
    ):
        lengths = np.linalg.norm(expected, axis=1, keepdims=True) if normalize else 1
        assert found.shape == (3, width)
        assert np.abs(found - expected / lengths).max() < TOLERANCE


def test_pooling_of_a_tower_is_rejected(tiny: Callable[[str], str]) -> None:
    with pytest.raises(ModelLoad, match=r"pooling: '.*clip.*' is a CLIPModel"):
        loaded("image-feature-extraction", tiny("clip"), ["image"], pooling="cls")


def test_model_without_image_tower_is_rejected(
    tiny: Callable[[str], str], messages: Messages
) -> None:
    with messages.raises(ModelLoad):
        loaded("image-feature-extraction", tiny("audio_text_model"), ["image"])
