"""PyTorch modules."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath
from batchinference.spec.models.base import Inputs, RuntimeModel, Source


class TorchModel(RuntimeModel):
    """A PyTorch module: made by a function, or loaded from a file."""

    runtime: Literal["torch"]
    """The library that runs the model."""
    factory: ModulePath | None = None
    """`module:function` that returns the torch.nn.Module. With `source`, the module then loads
    that state dict."""
    factory_args: Arguments = {}
    """Keyword arguments of the factory."""
    source: Source | None = None
    """A path or s3:// address: of a state dict when there is a factory; else of a TorchScript
    (.pt) or exported program (.pt2) file."""
    inputs: Inputs
    """The argument of the module's forward, and the column that it takes as a tensor of
    batch x the column's own shape."""
    output: ColumnName
    """The column that takes the module's output, a tensor of batch x any shape."""

    @model_validator(mode="after")
    def _check(self) -> TorchModel:
        if self.factory is None and self.source is None:
            raise PydanticCustomError(
                "model_source", "give a 'factory' or a 'source' (or both)", {}
            )
        if self.factory is None and self.factory_args:
            raise PydanticCustomError("model_factory", "'factoryArgs' needs a 'factory'", {})
        return self
