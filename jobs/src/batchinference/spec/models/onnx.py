"""ONNX models."""

from __future__ import annotations

from typing import Literal

from batchinference.spec.base import ColumnName
from batchinference.spec.models.base import Inputs, OutputName, RuntimeModel, Source
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class OnnxModel(RuntimeModel):
    """An ONNX model, run by ONNX Runtime."""

    runtime: Literal["onnx"]
    """The library that runs the model."""
    source: Source
    """A path or s3:// address of an .onnx file, or of a folder that holds one beside the data that
    belongs to it."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store of a `source` is reached that is an address."""
    inputs: Inputs
    """The model's inputs by name, and the column that each takes as an array of batch x the
    column's own shape. Floating numbers are cast to those of the input, and whole numbers to those
    of the input where they fit; nothing else is cast."""
    output: ColumnName
    """The column that takes the model's output, an array of batch x any shape."""
    output_name: OutputName | None = None
    """Which output to take where the model has several."""
