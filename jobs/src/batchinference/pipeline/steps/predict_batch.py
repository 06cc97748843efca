"""Runs existing classes whose method `predict_batch` takes a list of values, without changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from PIL import Image

from batchinference.pipeline.arrow import require_columns, to_batch
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.result_columns import ResultColumns

if TYPE_CHECKING:
    from batchinference.spec.python_step import PredictBatch


class PredictBatchTransform:
    """Passes one column to the method as a list, and adds its results as a new column."""

    def __init__(
        self,
        name: str,
        columns: PredictBatch,
        method: Callable[..., Any],
        arguments: dict[str, Any],
    ) -> None:
        self._name = name
        self._columns = columns
        self._method = method
        self._arguments = arguments
        self._made = ResultColumns(name)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._name, [self._columns.input], batch)
        values = to_batch(batch.select([self._columns.input]))[self._columns.input]
        results = _plain(self._method([_legacy(value) for value in values], **self._arguments))
        if len(results) != batch.num_rows:
            raise JobFailure(
                f"step '{self._name}': predict_batch returned {len(results)} results for "
                f"{batch.num_rows} values: it must return one for each"
            )
        return self._made.added(batch, self._columns.output, results, failed={})


def _legacy(value: Any) -> Any:
    """Return an image (uint8; height x width, or height x width x 3 or 4 channels) as a Pillow
    image, and any other value unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return value
    is_image = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in (3, 4))
    return Image.fromarray(value) if is_image else value


def _plain(results: Any) -> Any:
    """Return tensors on any device as NumPy arrays, and other results unchanged."""
    if hasattr(results, "detach"):
        results = results.detach().cpu()
        return (
            results.float().numpy() if str(results.dtype) == "torch.bfloat16" else results.numpy()
        )
    if isinstance(results, list | tuple) and results and hasattr(results[0], "detach"):
        return [_plain(result) for result in results]
    return results
