"""The models of steps, with one module per runtime."""

from typing import Annotated, get_args

from pydantic import Field

from batchinference.spec.models.base import RuntimeModel, Source
from batchinference.spec.models.http import HttpModel
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
    | OnnxModel
    | SentenceTransformersModel,
    Field(discriminator="runtime"),
]

RUNTIMES: dict[str, type[RuntimeModel]] = {
    get_args(model.model_fields["runtime"].annotation)[0]: model
    for model in get_args(get_args(Model)[0])
}
"""The class of each runtime."""
