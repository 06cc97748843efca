"""The model of a step: one module a runtime."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.models.base import Source
from batchinference.spec.models.http import HttpModel
from batchinference.spec.models.torch import TorchModel
from batchinference.spec.models.transformers import TransformersModel

Model = Annotated[TransformersModel | TorchModel | HttpModel, Field(discriminator="runtime")]

__all__ = ["HttpModel", "Model", "Source", "TorchModel", "TransformersModel"]
