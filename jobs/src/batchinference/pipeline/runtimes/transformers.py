"""Models of the transformers library: embeddings and classification of texts and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from batchinference.pipeline.devices import Device
from batchinference.pipeline.runtimes.base import take
from batchinference.pipeline.runtimes.sources import resolve
from batchinference.spec.models.transformers import TEXT_TASKS, TransformersModel

_MODELS = {
    "feature-extraction": transformers.AutoModel,
    "text-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
    "image-feature-extraction": transformers.AutoModel,
}


class TransformersRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._spec = model
        self._device = take(device)
        path = resolve(model.source)
        self._prepare = _TextInput(path, model) if _is_text(model) else _ImageInput(path, model)
        self._model = _MODELS[model.task].from_pretrained(path).to(self._device).eval()

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray | pa.Array:
        (values,) = inputs.values()
        prepared = self._prepare(values).to(self._device)
        with torch.inference_mode():
            output = self._model(**prepared)
        if self._spec.task.endswith("feature-extraction"):
            return self._embeddings(output, prepared.get("attention_mask"))
        return self._labels(output.logits)

    def _embeddings(self, output: Any, mask: torch.Tensor | None) -> np.ndarray:
        """rows x width, float32."""
        pooled = pool(output.last_hidden_state, mask, self._spec.pooling or "mean")
        if self._spec.normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=1)
        return pooled.float().cpu().numpy()

    def _labels(self, logits: torch.Tensor) -> pa.Array:
        """The most likely label of each row, with its probability."""
        scores, indices = torch.softmax(logits.float(), dim=-1).max(dim=-1)
        names = [self._model.config.id2label[index] for index in indices.tolist()]
        columns = [pa.array(names, pa.string()), pa.array(scores.cpu().numpy())]
        return pa.StructArray.from_arrays(columns, ["label", "score"])


def pool(hidden: torch.Tensor, mask: torch.Tensor | None, how: str) -> torch.Tensor:
    """One vector a row: from rows x tokens x width, or rows x width x height x width of a
    convolutional network. Padding (mask 0) has no part in a mean."""
    if hidden.ndim == 4:
        return hidden.mean(dim=(2, 3))
    if how == "cls":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def _is_text(model: TransformersModel) -> bool:
    return model.task in TEXT_TASKS


class _TextInput:
    """Texts to token tensors, padded to the longest of the batch."""

    def __init__(self, path: str, model: TransformersModel) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self._options = {"truncation": True, "padding": True, **model.options}

    def __call__(self, values: np.ndarray) -> Any:
        for value in values:
            if not isinstance(value, str):
                raise TypeError(f"expected text, got {type(value).__name__}")
        return self._tokenizer(list(values), return_tensors="pt", **self._options)


class _ImageInput:
    """Images (height x width x channels, uint8) to the pixel tensors that the model wants."""

    def __init__(self, path: str, model: TransformersModel) -> None:
        self._processor = transformers.AutoImageProcessor.from_pretrained(path)
        self._options = dict(model.options)

    def __call__(self, values: np.ndarray) -> Any:
        images = list(values)
        for image in images:
            # the library would take text for the address of an image and fetch it
            if not isinstance(image, np.ndarray) or image.ndim != 3:
                what = image.shape if isinstance(image, np.ndarray) else type(image).__name__
                raise TypeError(f"expected an image of height x width x channels, got {what}")
        options = {"input_data_format": "channels_last", **self._options}
        return self._processor(images=images, return_tensors="pt", **options)
