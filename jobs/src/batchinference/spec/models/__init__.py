"""The models of steps, with one module per runtime."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.models.base import Source
from batchinference.spec.models.http import HttpModel
from batchinference.spec.models.keras import KerasModel
from batchinference.spec.models.onnx import OnnxModel
from batchinference.spec.models.sentence_transformers import SentenceTransformersModel
from batchinference.spec.models.torch import TorchModel
from batchinference.spec.models.torchvision import TorchvisionModel
from batchinference.spec.models.transformers import TransformersModel
from batchinference.spec.models.vllm import VllmModel

Model = Annotated[
    TransformersModel
    | TorchModel
    | HttpModel
    | VllmModel
    | TorchvisionModel
    | KerasModel
    | OnnxModel
    | SentenceTransformersModel,
    Field(discriminator="runtime"),
]

__all__ = [
    "HttpModel",
    "KerasModel",
    "Model",
    "OnnxModel",
    "SentenceTransformersModel",
    "Source",
    "TorchModel",
    "TorchvisionModel",
    "TransformersModel",
    "VllmModel",
]
