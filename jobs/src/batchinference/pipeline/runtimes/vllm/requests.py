"""What the engine is asked for a row, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.runtimes.prompts import messages_of, plain, text_of
from batchinference.spec.models import VllmModel

Request = dict[str, Any]
ADAPTER = "adapter"
"""Of a request: the name of an adapter, None for the model itself."""


def request_of(model: VllmModel, row: Mapping[str, Any]) -> Request:
    """The columns that Ray's stages read. Raises for values that nothing can be made of."""
    told = {name: value for name, value in row.items() if name != model.adapter}
    request: Request = {}
    if model.is_chat:
        request["messages"] = messages_of(model, told)
    else:
        request["prompt"] = text_of(model, told)
    if model.adapter is not None:
        request[ADAPTER] = plain(row[model.adapter])
    return request


def parameters_of(model: VllmModel) -> Request:
    """The columns that are the same for all rows."""
    return {"sampling_params" if model.task == "generate" else "pooling_params": model.sampling}


def result_of(task: str) -> Callable[[Mapping[str, Any]], str | bytes]:
    """What the engine's answer holds for the output: a text, or the bytes of a vector.

    Beside a row that has none, Ray would make Python objects of vectors.
    """
    if task == "embed":
        return lambda answer: np.asarray(answer["embeddings"], dtype=np.float32).tobytes()
    return lambda answer: answer["generated_text"]


def column_of(task: str, results: pa.ChunkedArray) -> pa.ChunkedArray:
    """The results as the column that the output has."""
    if task == "embed":
        return to_column([np.frombuffer(vector, np.float32) for vector in results.to_pylist()])
    return results
