"""Keras models."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, rules
from batchinference.spec.models.base import (
    SOURCE_RULE,
    Inputs,
    OutputName,
    RuntimeModel,
    Source,
    check_factory,
)
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class KerasModel(RuntimeModel):
    """A Keras 3 model: loaded from a file, or made by a function."""

    model_config = ConfigDict(json_schema_extra=rules(SOURCE_RULE))

    runtime: Literal["keras"]
    """The library that runs the model."""
    factory: ModulePath | None = None
    """`module:function` that returns the keras.Model. With `source`, the model then loads those
    weights."""
    factory_args: Arguments = {}
    """Keyword arguments of the factory."""
    source: Source | None = None
    """A path or s3:// address: of a .weights.h5 file when there is a factory; else of a .keras
    file."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store of a `source` is reached that is an address."""
    backend: Literal["torch", "tensorflow", "jax"] | None = None
    """What Keras computes with. The environment's KERAS_BACKEND by default, else
    torch; the others must be installed, or be in the image."""
    inputs: Inputs
    """The model's input, and the column that it takes as an array of batch x the column's own
    shape. A model with one input takes it under any name."""
    output: ColumnName
    """The column that takes the model's output, an array of batch x any shape."""
    output_name: OutputName | None = None
    """Which output to take where the model has several."""

    @model_validator(mode="after")
    def _check(self) -> KerasModel:
        check_factory(self, self.factory_args)
        wanted = ".weights.h5" if self.factory else ".keras"
        if self.source is not None and not self.source.endswith(wanted):
            raise PydanticCustomError(
                "model_source",
                "source: {what} end with '{wanted}'",
                {"what": "the weights for a factory" if self.factory else "a saved model must",
                 "wanted": wanted},
            )  # fmt: skip
        return self
