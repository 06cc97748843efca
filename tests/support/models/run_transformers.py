"""Run models of the transformers runtime over columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from batchinference.pipeline.arrow import to_batch
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import load_runtime
from support.inputs.photographs import photograph
from support.models.replicas import model_of


def loaded(task: str, source: str, inputs: Any, device: Device | None = None, **fields: Any) -> Any:
    """Return the runtime of a model whose inputs are columns of the same names."""
    model = model_of("transformers", tuple(inputs), task=task, source=source, **fields)
    return load_runtime(model, device or Device())


def objects(values: list[Any]) -> np.ndarray:
    """Return an array of objects, one for each value."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def photographs(*sizes: tuple[int, int]) -> list[np.ndarray]:
    """Return three photographs of these sizes (width, height)."""
    return [
        np.asarray(Image.fromarray(photograph(name)).resize(size))
        for name, size in zip(("chelsea", "coffee", "rocket"), sizes, strict=True)
    ]


def column(values: list[Any]) -> np.ndarray:
    """Return values as a column of a batch. Arrow converts all values except arrays."""
    if any(isinstance(value, np.ndarray) or value is None for value in values):
        return objects(values)
    return to_batch(pa.table({"column": values}))["column"]


def run(runtime: Runtime, columns: dict[str, list[Any]]) -> list[Any]:
    """Return the results of one batch as Python values."""
    result = runtime({name: column(values) for name, values in columns.items()})
    return list(result.tolist() if isinstance(result, np.ndarray) else result.to_pylist())


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def alike(result: Any, expected: Any, tolerance: float = 1e-4) -> bool:
    """Return whether two results are equal up to the tolerance of their numbers."""
    if isinstance(expected, dict):
        same = isinstance(result, dict) and result.keys() == expected.keys()
        return same and all(alike(result[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        same = isinstance(result, list) and len(result) == len(expected)
        return same and all(map(lambda a, b: alike(a, b, tolerance), result, expected))
    if isinstance(expected, float | np.floating):
        return math.isclose(result, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(result == expected)
