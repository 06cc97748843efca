"""Encodes rows for the vLLM processor: the request of each row, and the row itself as bytes.

The processor takes rows as dicts, and its stages may change values and types. So each row is
serialized as an Arrow table and is restored unchanged afterwards. A row without data (see
`execution.block_codec`) has a text in Ray's error column. Ray's stages pass rows with an error
through unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import concat, require_columns, to_batch, to_column, with_column
from batchinference.pipeline.errors import describe
from batchinference.pipeline.runtimes.prompts import messages_of, plain, rows_of, text_of
from batchinference.pipeline.storage.arrow_files import read_stream
from batchinference.spec.models import VllmModel
from batchinference.spec.reserved import OWN_PREFIX

Request = dict[str, Any]
ADAPTER = "adapter"
"""Key of a request: the name of an adapter, or None for the base model."""
ROW = OWN_PREFIX + "row"
REQUEST = OWN_PREFIX + "request"
RESULT = OWN_PREFIX + "result"
ERROR = "__inference_error__"
"""Ray's error column: empty for a good row. Rows with a text bypass the stages."""
_NO_REQUEST = "has nothing to ask"
"""The error text of a row without data, so that it bypasses the stages."""


def request_of(model: VllmModel, row: Mapping[str, Any]) -> Request:
    """Return the columns that Ray's stages read. Raises an error if the row is not a valid
    request."""
    inputs = {name: value for name, value in row.items() if name != model.adapter}
    request: Request = {}
    if model.is_chat:
        request["messages"] = messages_of(model, inputs)
    else:
        request["prompt"] = text_of(model, inputs)
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


class EngineError(Exception):
    """An error that the engine reported for a row."""


def encode_rows(
    block: pa.Table, has_data: np.ndarray, requests: Sequence[tuple[str, str]]
) -> pa.Table:
    """Return the rows of a block as input of the processor, with the columns ROW, REQUEST (JSON)
    and ERROR. `has_data` marks the rows with data (bool); `requests` has the request and the error
    of each of them."""
    remaining = iter(requests)
    pairs = [next(remaining) if present else ("", _NO_REQUEST) for present in has_data]
    texts = {REQUEST: [request for request, _ in pairs], ERROR: [error for _, error in pairs]}
    rows = [_bytes(block.slice(number, 1)) for number in range(block.num_rows)]
    arrays = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    return pa.table({ROW: pa.array(rows, pa.binary()), **arrays})


def requests_of(step: str, model: VllmModel, rows: pa.Table) -> list[tuple[str, str]]:
    """Return the request and the error text of each row. One of the two is empty."""
    if rows.num_rows == 0:
        return []
    require_columns(step, list(model.inputs.values()), rows)
    columns = to_batch(rows.select(sorted(set(model.inputs.values()))))
    inputs = {name: columns[column] for name, column in model.inputs.items()}
    return [_request(model, row) for row in rows_of(inputs)]


def _request(model: VllmModel, row: Mapping[str, Any]) -> tuple[str, str]:
    try:
        return json.dumps(request_of(model, row)), ""
    except Exception as error:  # noqa: BLE001 - any error caused by the row's values
        return "", describe(error)


def decode_rows(processed: pa.Table) -> pa.Table:
    """Return the original block from the rows of the processor's output."""
    return concat([read_stream(row) for row in processed.column(ROW).to_pylist()])


def with_results(
    model: VllmModel, rows: pa.Table, processed: pa.Table
) -> tuple[pa.Table, np.ndarray, dict[int, Exception]]:
    """Return the rows that have a result, with the results in the model's output column, their
    indexes, and the error of each other row. `processed` is the processor's output of the rows."""
    errors = processed.column(ERROR).to_pylist()
    succeeded = np.array([n for n, error in enumerate(errors) if not error], dtype=np.int64)
    failed: dict[int, Exception] = {n: EngineError(e) for n, e in enumerate(errors) if e}
    if not len(succeeded):
        return pa.table({}), succeeded, failed
    column = column_of(model.task, processed.column(RESULT).take(pa.array(succeeded)))
    kept = rows.take(pa.array(succeeded)).combine_chunks()
    return with_column(kept, model.output, column), succeeded, failed


def opened(parameters: Request, row: dict[str, Any]) -> Request:
    """Return the row's request and the parameters, and remove the encoded request from the row.

    This is the processor's preprocess function.

    Rows without a request get the parameters too. Ray combines rows into Arrow structs, and if one
    row lacked the parameters, the integers of all rows would become floats.
    """
    return {**parameters, **json.loads(row.pop(REQUEST) or "{}")}


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
