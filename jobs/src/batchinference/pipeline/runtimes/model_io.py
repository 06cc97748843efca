"""Converts the inputs of models to arrays, and selects one of their outputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from batchinference.pipeline.errors import JobFailure, ModelLoad

Batch = dict[str, np.ndarray]
"""The values of each input of a model, by the name of the input."""


def numeric_array(name: str, values: np.ndarray) -> np.ndarray:
    """Return the values of an input as one numeric array of shape rows x any shape. Raises
    TypeError if the rows have different shapes or are not numbers."""
    values = _stacked(values)
    if values.dtype.kind not in "biufc":
        problem = "rows of different shapes or no numbers: a tensor needs numbers of one shape"
        raise TypeError(f"input '{name}' has {problem}")
    return values


def _stacked(values: np.ndarray) -> np.ndarray:
    """Return nested arrays as one array if their shapes are equal. Return others unchanged."""
    if values.dtype != object:
        return values
    rows = [_stacked(row) if isinstance(row, np.ndarray) else row for row in values]
    return np.stack(rows) if len({np.shape(row) for row in rows}) == 1 else values


def run_in_parts(run: Callable[[Batch], np.ndarray], inputs: Batch, size: int | None) -> np.ndarray:
    """Run a model on parts of a batch, and return its results (rows x any shape, any type). `size`
    is the fixed batch size of the model; None if it accepts any batch size. The last part is padded
    to `size` with copies of the last row. Raises JobFailure for an output of another size."""
    if size is None:
        return run(inputs)
    count = len(next(iter(inputs.values())))
    parts = []
    for start in range(0, count, size):
        indexes = np.minimum(np.arange(start, start + size), count - 1)
        parts.append(run({name: values[indexes] for name, values in inputs.items()}))
        if (shape := parts[-1].shape)[:1] != (size,):
            problem = f"the model returned an output of shape {shape} for a batch of {size}"
            raise JobFailure(f"{problem}. Export it with the rows as the first axis of its output")
    return np.concatenate(parts)[:count]


def fixed_rows(sizes: Sequence[Any]) -> int | None:
    """Return the batch size for which a model was exported; None if its inputs have open or
    different sizes. `sizes` are the sizes of the first axis of the inputs."""
    are_fixed = all(isinstance(size, int) for size in sizes)  # an open size is a name or symbol
    return sizes[0] if are_fixed and len(set(sizes)) == 1 else None


def check_image(image: Any) -> None:
    """Raise TypeError if a value is not an image of height x width x 3, uint8."""
    if not isinstance(image, np.ndarray):
        raise TypeError(f"expected an image, got {type(image).__name__}")
    if image.ndim != 3 or image.shape[-1] != 3 or image.dtype != np.uint8:
        raise TypeError(
            f"expected an image of height x width x 3, uint8, got {image.shape}, {image.dtype}: "
            "options.mode: RGB makes the reader give such images"
        )


def select_output(output: Any, name: str | None) -> Any:
    """Return one of the outputs that a model has returned as a dict, list or tuple. `name` is a key
    or a position; None for the only output. If the model has returned a value of another type,
    return that value. Raises ModelLoad like `select_output_name`."""
    if isinstance(output, list | tuple):
        output = dict(enumerate(output))
    if not isinstance(output, Mapping):
        return output
    outputs = {str(key): value for key, value in output.items()}
    return outputs[select_output_name(outputs, name)]


def select_output_name(outputs: Iterable[str], wanted: str | None) -> str:
    """Return `wanted`; if it is None, the name of the only output. Raises ModelLoad if the model
    has no output `wanted`, or if `wanted` is None and there is not exactly one output."""
    names = list(outputs)
    if not names:
        raise ModelLoad("outputName: the model has no outputs. Return at least one tensor")
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None or wanted not in names:
        problem = "the model has several outputs" if wanted is None else f"no output '{wanted}'"
        raise ModelLoad(f"outputName: {problem}. Name one of {', '.join(names)}")
    return wanted


def check_input_names(expected: Iterable[str], configured: Iterable[str]) -> None:
    """Raise ModelLoad if the configured input names are not those that the model expects."""
    if set(expected) != set(configured):
        takes, names = (", ".join(sorted(inputs)) for inputs in (expected, configured))
        raise ModelLoad(f"inputs: the model takes {takes}, not {names}. Use the model's names")
