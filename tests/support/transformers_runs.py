"""Running models of the transformers runtime over columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.blocks import to_batch
from batchinference.pipeline.devices import Device
from batchinference.pipeline.runtimes import Runtime, load_runtime
from batchinference.spec.models import TransformersModel


def loaded(task: str, source: str, inputs: Any, device: Device | None = None, **fields: Any) -> Any:
    """The runtime of a model whose inputs are columns of the same names."""
    model = {
        **{"runtime": "transformers", "task": task, "source": source, "output": "out"},
        **{"inputs": {name: name for name in inputs}, **fields},
    }
    return load_runtime(TransformersModel.model_validate(model), device or Device())


def column(values: list[Any]) -> np.ndarray:
    """Values as a batch has them: those that are no arrays go through Arrow."""
    if any(isinstance(value, np.ndarray) or value is None for value in values):
        array = np.empty(len(values), dtype=object)
        array[:] = [*values, None][:-1]
        return array
    return to_batch(pa.table({"column": values}))["column"]


def run(runtime: Runtime, columns: dict[str, list[Any]]) -> list[Any]:
    """The results for all rows in one batch, as Python has them."""
    result = runtime({name: column(values) for name, values in columns.items()})
    return list(result.tolist() if isinstance(result, np.ndarray) else result.to_pylist())


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def alike(found: Any, expected: Any, tolerance: float = 1e-4) -> bool:
    """Whether two results are the same but for the last digits of their numbers."""
    if isinstance(expected, dict):
        same = isinstance(found, dict) and found.keys() == expected.keys()
        return same and all(alike(found[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        same = isinstance(found, list) and len(found) == len(expected)
        return same and all(map(lambda a, b: alike(a, b, tolerance), found, expected))
    if isinstance(expected, float | np.floating):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return bool(found == expected)
