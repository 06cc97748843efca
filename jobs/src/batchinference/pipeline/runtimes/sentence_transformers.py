"""Embeds texts and images with the sentence-transformers library."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import check_image
from batchinference.pipeline.runtimes.device import Device, torch_device
from batchinference.pipeline.runtimes.model_files import resolve
from batchinference.spec.models import SentenceTransformersModel


class SentenceTransformersRuntime:
    def __init__(self, model: SentenceTransformersModel, device: Device) -> None:
        transformers.logging.disable_progress_bar()
        self._spec = model
        self._kind: Literal["text", "image"] = "text" if "text" in model.inputs else "image"
        self._model = SentenceTransformer(
            resolve(model.source, model.revision, model.storage),
            device=str(torch_device(device)),
            revision=model.revision,
            truncate_dim=model.truncate_dim,
            model_kwargs={"dtype": getattr(torch, model.dtype)} if model.dtype else None,
        )
        if not self._model.supports(self._kind):
            takes = ", ".join(map(str, self._model.modalities))
            raise ModelLoad(f"inputs: '{model.source}' takes {takes}, not {self._kind}")
        if model.prompt_name is not None and model.prompt_name not in self._model.prompts:
            prompts = ", ".join(self._model.prompts) or "none"
            raise ModelLoad(
                f"promptName: '{model.source}' has no prompt '{model.prompt_name}', only {prompts}"
            )

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return embeddings of shape rows x width, float32."""
        (values,) = inputs.values()
        prepare = self._text if self._kind == "text" else _image
        embeddings = self._model.encode(
            [prepare(value) for value in values],
            batch_size=len(values),
            prompt=self._spec.prompt,
            prompt_name=self._spec.prompt_name,
            normalize_embeddings=bool(self._spec.normalize),
            show_progress_bar=False,
        )
        return np.asarray(embeddings, dtype=np.float32)

    def _text(self, value: Any) -> str | dict[str, str]:
        if not isinstance(value, str):
            raise TypeError(f"expected text, got {type(value).__name__}")
        # a multimodal model would download a text that looks like an image URL; a dict prevents it
        return value if self._model.modalities == ["text"] else {"text": value}


def _image(value: Any) -> Image.Image:
    check_image(value)
    return Image.fromarray(value)
