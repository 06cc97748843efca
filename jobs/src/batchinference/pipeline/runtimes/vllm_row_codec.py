"""Encodes rows for the vLLM processor: the request of each row, and the row itself as bytes.

The processor takes rows as dicts, and its stages may change values and types. So each row is
serialized as an Arrow table and is restored unchanged afterwards. A row without data (see
`execution.block_codec`) has a text in Ray's error column. Ray's stages pass rows with an error
through unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import (
    concat,
    require_columns,
    to_column,
    with_column,
    with_nulls,
)
from batchinference.pipeline.errors import JobFailure, describe
from batchinference.pipeline.row_warnings import warn
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs
from batchinference.pipeline.runtimes.prompts import (
    messages_of,
    plain,
    rows_of,
    text_of,
    values_for_texts,
)
from batchinference.pipeline.runtimes.vllm_prompts import fitted
from batchinference.pipeline.storage.arrow_files import read_stream
from batchinference.spec.models import VllmModel
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.warnings import WarningName

Request = dict[str, Any]
ADAPTER = "adapter"
"""Key of a request: the name of an adapter, or None for the base model."""
ROW = OWN_PREFIX + "row"
REQUEST = OWN_PREFIX + "request"
RESULT = OWN_PREFIX + "result"
ERROR = "__inference_error__"
"""Ray's error column: empty for a good row. Rows with a text bypass the stages."""
CUT = OWN_PREFIX + "cut"
"""The number of tokens that were cut from the texts of the row."""
_NO_REQUEST = "has nothing to ask"
"""The error text of a row without data or input, so that it bypasses the stages."""


class Asked(NamedTuple):
    """The request of a row as JSON, or why it has none, and the number of tokens that were cut."""

    request: str = ""
    error: str = _NO_REQUEST
    cut: int = 0


def request_of(model: VllmModel, row: Mapping[str, Any]) -> Request:
    """Return the columns that Ray's stages read. Raises an error if the row is not a valid
    request."""
    inputs = {name: value for name, value in row.items() if name != model.adapter}
    request: Request = {}
    if model.is_chat:
        request["messages"] = messages_of(model, inputs)
    else:
        request["prompt"] = _not_empty(text_of(model, inputs))
    if model.adapter is not None:
        request[ADAPTER] = plain(row[model.adapter])
    return request


def _not_empty(prompt: str) -> str:
    if not prompt:
        raise ValueError("the prompt is empty. Set the model's field emptyInput to null")
    return prompt


def parameters_of(model: VllmModel) -> Request:
    """Return the request columns that are the same for all rows.

    A JSON schema becomes a text, because Arrow would change the values of a mapping in rows."""
    if model.task == "embed":
        return {"pooling_params": model.sampling}
    outputs = model.sampling.get("structured_outputs")
    if not outputs or not isinstance(outputs.get("json"), dict):
        return {"sampling_params": model.sampling}
    outputs = {**outputs, "json": json.dumps(outputs["json"])}
    return {"sampling_params": {**model.sampling, "structured_outputs": outputs}}


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


def encode_rows(block: pa.Table, has_data: np.ndarray, requests: Sequence[Asked]) -> pa.Table:
    """Return the rows of a block as input of the processor, with the columns ROW, REQUEST (JSON),
    ERROR and CUT. `has_data` marks the rows with data (bool), to which `requests` belong."""
    remaining = iter(requests)
    asked = [next(remaining) if present else Asked() for present in has_data]
    rows = [_bytes(block.slice(number, 1)) for number in range(block.num_rows)]
    columns = {
        ROW: pa.array(rows, pa.binary()),
        REQUEST: pa.array([row.request for row in asked], pa.string()),
        ERROR: pa.array([row.error for row in asked], pa.string()),
        CUT: pa.array([row.cut for row in asked], pa.int64()),
    }
    return pa.table(columns)


def requests_of(step: str, model: VllmModel, rows: pa.Table) -> list[Asked]:
    """Return the request of each row. A row whose output is null has none."""
    if rows.num_rows == 0:
        return []
    require_columns(step, list(model.inputs.values()), rows)
    missing = missing_inputs(model, rows)
    return [
        Asked() if number in missing.skipped else _asked(model, row, missing.failed.get(number))
        for number, row in enumerate(rows_of(values_for_texts(model.inputs, rows)))
    ]


def _asked(model: VllmModel, row: dict[str, Any], error: Exception | None) -> Asked:
    try:
        if error is not None:
            raise error
        row, cut = fitted(model, row)
        return Asked(json.dumps(request_of(model, row)), "", cut)
    except Exception as problem:
        if isinstance(problem, JobFailure):
            raise
        return Asked(error=describe(problem))


def decode_rows(processed: pa.Table) -> pa.Table:
    """Return the original block from the rows of the processor's output."""
    return concat([read_stream(row) for row in processed.column(ROW).to_pylist()])


def with_results(
    model: VllmModel, rows: pa.Table, processed: pa.Table
) -> tuple[pa.Table, np.ndarray, dict[int, Exception]]:
    """Return the rows that have a result, with the results in the model's output column, their
    indexes, and the error of each other row. `processed` is the processor's output of the rows. The
    result of a row without an input is null. Reports warnings about the rows."""
    missing = missing_inputs(model, rows)
    missing.warn()
    errors = processed.column(ERROR).to_pylist()
    answered = np.array([n for n, error in enumerate(errors) if not error], dtype=np.int64)
    left = np.array(sorted([*answered.tolist(), *missing.skipped]), dtype=np.int64)
    failed: dict[int, Exception] = {
        n: EngineError(e) for n, e in enumerate(errors) if e and n not in missing.skipped
    }
    if not len(left):
        return pa.table({}), left, failed
    _warn_of_cuts(processed, answered)
    column: pa.Array | pa.ChunkedArray = pa.nulls(0)
    if len(answered):
        column = column_of(model.task, processed.column(RESULT).take(pa.array(answered)))
    if missing.skipped:
        column = with_nulls(column, np.searchsorted(left, answered), len(left))
    kept = rows.take(pa.array(left)).combine_chunks()
    return with_column(kept, model.output, column), left, failed


def _warn_of_cuts(processed: pa.Table, answered: np.ndarray) -> None:
    cuts = processed.column(CUT).to_pylist() if CUT in processed.column_names else []
    for row in answered.tolist() if cuts else ():
        if cuts[row]:
            warn(WarningName.TEXT_CUT, row=row, amount=cuts[row])


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
