"""What runtimes ask of the columns that they are given, and of what their libraries return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from batchinference.pipeline.failures import ModelLoad


def numbers(name: str, values: np.ndarray) -> np.ndarray:
    """The values of an input as one array of rows x any shape.

    Raises TypeError when the rows have different shapes or are no numbers.
    """
    values = _stacked(values)
    if values.dtype.kind not in "biufc":
        raise TypeError(
            f"input '{name}' has rows of different shapes or no numbers: a tensor needs "
            "numbers of one shape"
        )
    return values


def _stacked(values: np.ndarray) -> np.ndarray:
    """Lists of one length, of any depth, as an array; others as they are."""
    if values.dtype != object:
        return values
    rows = [_stacked(row) if isinstance(row, np.ndarray) else row for row in values]
    return np.stack(rows) if len({np.shape(row) for row in rows}) == 1 else values


def check_image(image: Any) -> None:
    """Raise TypeError for what is no image of height x width x 3, uint8."""
    if not isinstance(image, np.ndarray):
        raise TypeError(f"expected an image, got {type(image).__name__}")
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
        raise TypeError(
            f"expected an image of height x width x 3, uint8, got {image.shape}, {image.dtype}: "
            "options.mode: RGB makes the reader give such images"
        )


def chosen(output: Any, name: str | None) -> Any:
    """The one of a model's outputs that is wanted: by key of a dict, by position in a list.

    What is neither is the only output. Raises ModelLoad when it is not told which.
    """
    if isinstance(output, Mapping):
        outputs = {str(key): value for key, value in output.items()}
    elif isinstance(output, list | tuple):
        outputs = {str(position): value for position, value in enumerate(output)}
    else:
        return output
    if name is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if name not in outputs:
        given = "outputName is not given" if name is None else f"it has no '{name}'"
        raise ModelLoad(f"the model has the outputs {', '.join(outputs)}, and {given}")
    return outputs[name]
