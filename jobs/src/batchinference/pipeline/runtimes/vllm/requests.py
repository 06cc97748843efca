"""The engine's request for a row, and the conversion of its results."""

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
"""Key of a request: the name of an adapter, or None for the base model."""


def request_of(model: VllmModel, row: Mapping[str, Any]) -> Request:
    """Return the columns that Ray's stages read. Raises if the row makes no valid request."""
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
    """Return the request columns that are the same for all rows."""
    return {"sampling_params" if model.task == "generate" else "pooling_params": model.sampling}


def result_of(task: str) -> Callable[[Mapping[str, Any]], str | bytes]:
    """Return a function that extracts the result from the engine's answer: text or embedding bytes.

    Embeddings are bytes, because Ray would convert a column of vectors to Python objects if a row
    in it has no vector.
    """
    if task == "embed":
        return lambda answer: np.asarray(answer["embeddings"], dtype=np.float32).tobytes()
    return lambda answer: answer["generated_text"]


def column_of(task: str, results: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the results as the output column. Converts the bytes of embeddings to vectors."""
    if task == "embed":
        return to_column([np.frombuffer(vector, np.float32) for vector in results.to_pylist()])
    return results
