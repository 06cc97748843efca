"""ONNX models."""

from typing import Literal

from batchinference.spec.base import ColumnName
from batchinference.spec.models.base import Inputs, OutputName, RuntimeModel, Source
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class OnnxModel(RuntimeModel):
    """An ONNX model, run by ONNX Runtime."""

    runtime: Literal["onnx"]
    """The library that runs the model."""
    source: Source
    """The path or URI of an .onnx file, or of a folder with one such file and its external data."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The inputs of the model by name, and the column for each. A column becomes an array of batch
    x the shape of its values. Floating-point numbers are converted to the type of the input, and
    also integers that fit into this type. Other values are not converted."""
    output: ColumnName
    """The column for the output of the model, an array of batch x any shape."""
    output_name: OutputName | None = None
    """The output to use if the model has several."""
