"""Keras models."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, rules
from batchinference.spec.models.base import (
    FACTORY_RULE,
    SOURCE_RULE,
    Inputs,
    OutputName,
    RuntimeModel,
    Source,
    check_factory,
)
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

_WEIGHTS, _MODEL = ".weights.h5", ".keras"


class KerasModel(RuntimeModel):
    """A Keras 3 model that is loaded from a file, or that a function returns. The environment
    variable KERAS_BACKEND selects the backend: torch by default."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            SOURCE_RULE,
            FACTORY_RULE,
            (
                "!has(self.source) || self.source.endsWith('}}') || "
                f"self.source.endsWith(has(self.factory) ? '{_WEIGHTS}' : '{_MODEL}')",
                f"source: the weights for a factory end with '{_WEIGHTS}', a saved model with "
                f"'{_MODEL}'",
            ),
        )
    )

    runtime: Literal["keras"]
    """The library that runs the model."""
    factory: ModulePath | None = None
    """`module:function` that returns the keras.Model. With `source`, the model loads these
    weights."""
    factory_args: Arguments | None = None
    """Keyword arguments of the factory."""
    source: Source | None = None
    """The path or URI of a .weights.h5 file if there is a factory, else of a .keras file."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The inputs of the model, and the column for each. A column becomes an array of batch x the
    shape of its values. If the model has only one input, the name can be any name."""
    output: ColumnName
    """The column for the output of the model, an array of batch x any shape."""
    output_name: OutputName | None = None
    """The output to use if the model has several."""

    @model_validator(mode="after")
    def _check(self) -> KerasModel:
        check_factory(self, self.factory_args)
        extension = _WEIGHTS if self.factory else _MODEL
        if self.source is not None and not self.source.endswith(extension):
            raise PydanticCustomError(
                "model_source",
                "source: {what} end with '{wanted}'",
                {"what": "the weights for a factory" if self.factory else "a saved model must",
                 "wanted": extension},
            )  # fmt: skip
        return self
