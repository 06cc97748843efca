"""Computes embeddings and classifications, with calls of the model for many rows at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import transformers

from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.model_turns import computing
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.flat_tokens import Prepared
from batchinference.pipeline.runtimes.model_io import Batch
from batchinference.pipeline.runtimes.text_limits import Windows
from batchinference.pipeline.runtimes.transformers.loading import ModelLoader, to_model
from batchinference.pipeline.runtimes.transformers.media_inputs import (
    AudioInput,
    ImageInput,
    VideoInput,
)
from batchinference.pipeline.runtimes.transformers.text_inputs import TextInput
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.base import LABELED
from batchinference.spec.models.transformers_tasks import EMBEDDING
from batchinference.text import with_article

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
_WINDOWS_AT_ONCE = 1024
"""With `maxTokensPerBatch`, the number of windows whose tokens are in memory at the same time."""
Prepare = Callable[[Batch, Prepared | None], Iterator[tuple[np.ndarray, Any]]]


class EncoderRuntime:
    def __init__(self, model: TransformersModel, device: Device) -> None:
        loader = ModelLoader(model, device)
        self._spec = model
        self._model = loader.load_model(MODELS[model.task])
        self._tower = _tower(self._model, model)
        self._prepare = _preparation(loader, model, self._model)
        self._labels = self._embedded(model.candidate_labels) if model.candidate_labels else None

    def _embedded(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the embeddings of texts, scaled to length 1."""
        vectors = torch.from_numpy(self._results_of({"text": np.array(texts, object)}))
        return torch.nn.functional.normalize(vectors, dim=1)

    def __call__(self, inputs: Batch, prepared: Prepared | None = None) -> np.ndarray | pa.Array:
        """Return embeddings (rows x width, float32) or labels. `prepared` may have the tokens."""
        windows = None
        if isinstance(self._prepare, TextInput):
            inputs, windows = self._prepare.divide(inputs)
        results = torch.from_numpy(self._results(inputs, windows, prepared))
        if self._spec.task not in EMBEDDING:
            results = _scores(results, self._model.config)
        if windows is not None:
            results = torch.from_numpy(windows.averages(results.numpy()))
        if self._spec.task not in EMBEDDING:
            return label_column(results, self._model.config.id2label, self._spec.top_k)
        if self._spec.normalize or self._labels is not None:
            results = torch.nn.functional.normalize(results, dim=1)
        if self._labels is not None:
            return label_column(results @ self._labels.T, self._spec.candidate_labels)
        return results.numpy()

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text. Only for models with texts as input."""
        return self._prepare.lengths(texts) if isinstance(self._prepare, TextInput) else []

    def _results(
        self, inputs: Batch, windows: Windows | None, prepared: Prepared | None
    ) -> np.ndarray:
        """Return the results of all rows; if there are `windows`, of all windows (float32)."""
        count = len(next(iter(inputs.values())))
        if windows is None:
            return self._results_of(inputs, prepared)
        budget = self._spec.max_tokens_per_batch
        size = len(set(windows.owners.tolist())) if budget is None else _WINDOWS_AT_ONCE
        results = []
        for start in range(0, count, size):
            part = {name: values[start : start + size] for name, values in inputs.items()}
            with collect_warnings() as warnings:
                results.append(self._results_of(part))
            for warning in warnings:
                row = int(windows.owners[start + warning.row])
                warn(warning.name, row=row, amount=warning.amount)
        return np.concatenate(results)

    def _results_of(self, inputs: Batch, prepared: Prepared | None = None) -> np.ndarray:
        count = len(next(iter(inputs.values())))
        results: np.ndarray | None = None
        for rows, tensors in self._prepare(inputs, prepared):
            part = self._computed(to_model(tensors, self._model))
            if results is None:
                results = np.empty((count, part.shape[1]), np.float32)
            results[rows] = part
        if results is None:
            raise ValueError("an empty batch")
        return results

    def _computed(self, prepared: Any) -> np.ndarray:
        with computing(), torch.inference_mode():
            return np.asarray(self._compute(prepared).float().cpu().numpy())

    def _compute(self, prepared: Any) -> Any:
        """Return a tensor: embeddings of rows x width, or logits of rows x classes."""
        if self._spec.task not in EMBEDDING:
            return self._model(**prepared).logits
        if self._tower is not None:
            output = self._tower(**prepared)
            return getattr(output, "pooler_output", output)
        hidden = self._model(**prepared).last_hidden_state
        return pool(hidden, prepared.get("attention_mask"), self._spec.pooling or "mean")


def pool(hidden: torch.Tensor, mask: torch.Tensor | None, how: str) -> torch.Tensor:
    """Return one vector per row, in the type of `hidden`. `hidden` is rows x tokens x width, or
    rows x channels x height x width for convolutional networks. A mean excludes padding (mask
    0)."""
    if hidden.ndim == 4:
        return hidden.mean(dim=(2, 3))
    if how == "cls":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(dim=1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def label_column(
    scores: torch.Tensor, names: Mapping[int, str] | Sequence[str], top_k: int | None = None
) -> pa.Array:
    """Return the most likely label of each row with its score, or a list of the `top_k` best.
    `scores` are rows x classes, and `names` are the labels of the classes."""
    count = min(top_k or 1, scores.shape[1])
    best, indices = scores.topk(count, dim=-1)
    labels = pa.array([names[index] for index in indices.flatten().tolist()], pa.string())
    flat = pa.StructArray.from_arrays(
        [labels, pa.array(best.flatten().numpy())], fields=list(arrow_type(LABELED))
    )
    if top_k is None:
        return flat
    offsets = np.arange(len(scores) + 1, dtype=np.int32) * count
    return pa.ListArray.from_arrays(pa.array(offsets), flat)


def _scores(logits: torch.Tensor, config: Any) -> torch.Tensor:
    """Return scores like the library's pipelines: probabilities, or the values of a regression."""
    if config.problem_type == "regression":
        return logits
    if config.problem_type == "multi_label_classification" or logits.shape[1] == 1:
        return logits.sigmoid()
    return logits.softmax(dim=-1)


def _tower(loaded: Any, model: TransformersModel) -> Callable[..., Any] | None:
    """Return the method with which a model such as CLIP embeds texts or images in one space. Return
    None for other tasks, and for models without `get_text_features`. Raises ModelLoad if the model
    has no such method for images, or if the job sets `pooling`."""
    if model.task not in EMBEDDING or not hasattr(loaded, "get_text_features"):
        return None
    kind = "text" if model.task == "feature-extraction" else "image"
    tower: Callable[..., Any] | None = getattr(loaded, f"get_{kind}_features", None)
    if tower is None:
        raise ModelLoad(f"task: '{model.source}' has no embeddings of {kind}s for '{model.task}'")
    if model.pooling is not None:
        kind_of_model = with_article(type(loaded).__name__)
        raise ModelLoad(
            f"pooling: '{model.source}' is {kind_of_model}, which pools in its own way. Remove the "
            "field"
        )
    return tower


def _preparation(loader: ModelLoader, model: TransformersModel, network: Any) -> Prepare:
    if "text" in model.inputs:
        siglip = model.task == "feature-extraction" and "siglip" in network.config.model_type
        return TextInput(loader, model, network, **(_SIGLIP_TOKENS if siglip else {}))
    if "image" in model.inputs:
        return ImageInput(loader, model)
    if "audio" in model.inputs:
        return AudioInput(loader, model)
    return VideoInput(loader, model, network.config)
