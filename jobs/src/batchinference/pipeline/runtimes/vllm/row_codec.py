"""Encodes rows for the vLLM processor: the request of each row, and the row itself as bytes.

The processor takes rows as dicts, and its stages may change values and types. So each row is
serialized as an Arrow table and is restored unchanged afterwards. A row without a request (a
failed row, a filtered row, or the end row of a file) has a text in Ray's error column. Ray's stages
pass rows with an error through unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat, require_columns, to_batch, with_column
from batchinference.pipeline.runtimes.prompts import rows_of
from batchinference.pipeline.runtimes.vllm.requests import Request, column_of, request_of
from batchinference.pipeline.storage.arrow_files import read_stream
from batchinference.spec.models import VllmModel
from batchinference.spec.reserved import OWN_PREFIX

ROW = OWN_PREFIX + "row"
REQUEST = OWN_PREFIX + "request"
RESULT = OWN_PREFIX + "result"
ERROR = "__inference_error__"
"""Ray's error column: empty for a good row. Rows with a text bypass the stages."""
PASSES = "has nothing to ask"
SetAside = Callable[[int, int, Exception], pa.Table]
"""Returns a failed row for a row id, a share and an error. Raises if no errors are tolerated."""


class EngineError(Exception):
    """An error that the engine reported for a row."""


def encode_rows(step: str, model: VllmModel, table: pa.Table) -> pa.Table:
    """Return the rows as input of the processor, with the columns ROW, REQUEST (JSON) and ERROR."""
    good, rest = row_ids.split(table)
    sealed = [_sealed(good, _requests(step, model, good))]
    if rest is not None:
        sealed.append(_sealed(rest, [("", PASSES)] * rest.num_rows))
    return pa.concat_tables(sealed)


def _requests(step: str, model: VllmModel, good: pa.Table) -> list[tuple[str, str]]:
    """Return the request and the error text of each row. One of the two is empty."""
    if good.num_rows == 0:
        return []
    require_columns(step, list(model.inputs.values()), good)
    columns = to_batch(good.select(sorted(set(model.inputs.values()))))
    inputs = {name: columns[column] for name, column in model.inputs.items()}
    return [_request(model, row) for row in rows_of(inputs)]


def _request(model: VllmModel, row: Mapping[str, Any]) -> tuple[str, str]:
    try:
        return json.dumps(request_of(model, row)), ""
    except Exception as error:  # noqa: BLE001 - any error caused by the row's values
        return "", row_ids.describe(error)


def _sealed(table: pa.Table, requests: list[tuple[str, str]]) -> pa.Table:
    sealed = [_bytes(table.slice(number, 1)) for number in range(table.num_rows)]
    texts = {
        REQUEST: [request for request, _ in requests],
        ERROR: [error for _, error in requests],
    }
    arrays = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    return pa.table({ROW: pa.array(sealed, pa.binary()), **arrays})


def decode_rows(table: pa.Table, model: VllmModel, set_aside: SetAside) -> pa.Table:
    """Return the rows of the processor's output, with the results in the model's output column."""
    errors = table.column(ERROR).to_pylist()
    originals = [read_stream(sealed) for sealed in table.column(ROW).to_pylist()]
    well = [number for number, error in enumerate(errors) if not error]
    results = [originals[number] for number in well]
    if well:
        column = column_of(model.task, table.column(RESULT).take(pa.array(well)))
        results = [with_column(concat(results).combine_chunks(), model.output, column)]
    for original, error in zip(originals, errors, strict=True):
        if error:
            results.append(_passed(original, error, set_aside))
    return concat(results)


def _passed(original: pa.Table, error: str, set_aside: SetAside) -> pa.Table:
    if original.column(row_ids.STATE)[0].as_py() != row_ids.GOOD:
        return original
    shares = row_ids.shares_of(original)
    share = row_ids.FULL_SHARE if shares is None else int(shares[0])
    return set_aside(int(row_ids.ids_of(original)[0]), share, EngineError(error))


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
