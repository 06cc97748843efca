"""Computes embeddings and classifications with one call of the model for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.transformers.inputs import (
    AudioInput,
    ImageInput,
    Tokens,
    VideoInput,
    fit,
    texts,
)
from batchinference.pipeline.runtimes.transformers.loading import Source, to_model
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import EMBEDDING

LABELED = pa.struct([("label", pa.string()), ("score", pa.float32())])
MODELS = {
    "feature-extraction": transformers.AutoModel,
    "text-classification": transformers.AutoModelForSequenceClassification,
    "image-classification": transformers.AutoModelForImageClassification,
    "image-feature-extraction": transformers.AutoModel,
    "audio-classification": transformers.AutoModelForAudioClassification,
    "video-classification": transformers.AutoModelForVideoClassification,
}
_SIGLIP_TOKENS = {"padding": "max_length", "max_length": 64}
"""SigLIP was trained on texts padded to this length, and has no attention mask."""
Prepare = Callable[[dict[str, np.ndarray]], Iterator[tuple[np.ndarray, Any]]]


class EncoderRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        source = Source(model, device)
        self._spec = model
        self._model = source.model(MODELS[model.task])
        self._tower = _tower(self._model, model)
        self._prepare = _input(source, model, self._model)

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray | pa.Array:
        """Return embeddings (rows x width, float32), or classes as in `labels`."""
        count = len(next(iter(inputs.values())))
        results: np.ndarray | None = None
        for rows, prepared in self._prepare(inputs):
            with torch.inference_mode():
                part = self._compute(prepared).float().cpu().numpy()
            results = np.empty((count, part.shape[1]), np.float32) if results is None else results
            results[rows] = part
        if results is None:
            raise ValueError("an empty batch")
        if self._spec.task in EMBEDDING:
            return results
        return labels(torch.from_numpy(results), self._model.config, self._spec.top_k)

    def _compute(self, prepared: Any) -> torch.Tensor:
        """Return embeddings of rows x width, or logits of rows x classes."""
        prepared = to_model(prepared, self._model)
        if self._spec.task not in EMBEDDING:
            logits: torch.Tensor = self._model(**prepared).logits
            return logits
        if self._tower is not None:
            output = self._tower(**prepared)
            pooled = output if isinstance(output, torch.Tensor) else output.pooler_output
        else:
            hidden = self._model(**prepared).last_hidden_state
            pooled = pool(hidden, prepared.get("attention_mask"), self._spec.pooling or "mean")
        return torch.nn.functional.normalize(pooled, dim=1) if self._spec.normalize else pooled


def pool(hidden: torch.Tensor, mask: torch.Tensor | None, how: str) -> torch.Tensor:
    """Return one vector per row. `hidden` is rows x tokens x width, or rows x channels x height x
    width for a convolutional network. A mean excludes padding (mask 0)."""
    if hidden.ndim == 4:
        return hidden.mean(dim=(2, 3))
    if how == "cls":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def labels(logits: torch.Tensor, config: Any, top_k: int | None) -> pa.Array:
    """Return the most likely label of each row with its score, or a list of the `top_k` best.

    `logits` are rows x classes.
    """
    most = min(top_k or 1, logits.shape[1])
    scores, indices = _scores(logits, config).topk(most, dim=-1)
    names = pa.array([config.id2label[index] for index in indices.flatten().tolist()], pa.string())
    flat = pa.StructArray.from_arrays(
        [names, pa.array(scores.flatten().numpy())], fields=list(LABELED)
    )
    if top_k is None:
        return flat
    offsets = np.arange(len(logits) + 1, dtype=np.int32) * most
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _scores(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Return the scores as the library's pipelines do: probabilities, or for a regression the raw
    values."""
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or logits.shape[1] == 1:
        return logits.sigmoid()
    return logits.softmax(dim=-1)


def _tower(loaded: Any, model: TransformersModel) -> Callable[..., Any] | None:
    """Return the text or image half of a CLIP-like model, which embeds both in the same space.

    Returns None for other models and tasks. Raises ModelLoad if the model lacks that half."""
    if model.task not in EMBEDDING or not hasattr(loaded, "get_text_features"):
        return None
    kind = "text" if model.task == "feature-extraction" else "image"
    if not hasattr(loaded, f"get_{kind}_features"):
        raise ModelLoad(f"task: '{model.source}' has no embeddings of {kind}s for '{model.task}'")
    if model.pooling is not None:
        raise ModelLoad(
            f"pooling: '{model.source}' is a {type(loaded).__name__}, which pools in its own way. "
            "Remove the field"
        )
    tower: Callable[..., Any] = getattr(loaded, f"get_{kind}_features")
    return tower


def _input(source: Source, model: TransformersModel, network: Any) -> Prepare:
    if "text" in model.inputs:
        tokenizer = source.processor(transformers.AutoTokenizer)
        fit(tokenizer, network, model.source)
        embedding = model.task == "feature-extraction"
        siglip = embedding and "siglip" in network.config.model_type
        tokens = Tokens(tokenizer, model, **(_SIGLIP_TOKENS if siglip else {}))
        names = [name for name in ("text", "text_pair") if name in model.inputs]
        return lambda inputs: tokens.batches(*(texts(inputs[name]) for name in names))
    if "image" in model.inputs:
        return ImageInput(source, model)
    if "audio" in model.inputs:
        return AudioInput(source, model)
    return VideoInput(source, model, network.config)
