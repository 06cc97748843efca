"""The decode step: decodes a column of bytes as images, audio, text or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.errors import FORMATS_EXTRA, ModelLoad, require_package
from batchinference.pipeline.media import images
from batchinference.pipeline.steps.base import TransformResult, of_first_rows
from batchinference.pipeline.steps.json_values import JsonDecoder, TypedJsonDecoder
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.spec.decode import (
    SAMPLE_RATE,
    Decode,
    DecodeAudio,
    DecodeImage,
    DecodeJson,
    DecodeText,
)
from batchinference.spec.json_types import parse_json_type
from batchinference.spec.read import AudioOptions, PictureOptions

RESULT_BYTES = 64 << 20
"""Approximate maximum bytes of the values that are decoded at a time."""
JSON_GROWTH, CELL_BYTES = 16, 8
"""The memory of a JSON document: a multiple of its length, and a number of bytes per field."""


class DecodeColumn:
    """Decodes each value of a column. Rows whose value cannot be decoded are failed rows.

    The result is of the first rows of a batch if the values of the others would take too much
    memory together with theirs."""

    def __init__(self, step: str, decode: Decode) -> None:
        self._step, self._spec = step, decode
        self._decode = decoder_of(step, decode)
        self._made = ResultColumns(step)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._spec.column], batch)
        decoded: list[Any] = []
        failed: dict[int, Exception] = {}
        size = rows = 0
        for row, value in enumerate(batch.column(self._spec.column)):
            try:
                content = self._content(value.as_py())
                found = None if content is None else self._decode(content)
            except Exception as error:
                if not is_about_the_file(error):
                    raise
                failed[row] = error
            else:
                if row * self._cell_bytes() > RESULT_BYTES:
                    break  # the next call decodes this row again
                decoded.append(found)
                size += 0 if content is None else self._size_of(content, found)
            rows += 1
            if size >= RESULT_BYTES:
                break
        result = self._made.added(batch.slice(0, rows), self._columns(decoded), failed)
        return result if rows == batch.num_rows else of_first_rows(result, rows)

    def _content(self, value: Any) -> Any:
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict):
            raise ValueError(f"column '{self._spec.column}' has a struct without 'bytes'")
        return content

    def _cell_bytes(self) -> int:
        """Return the bytes that a row takes for the fields of all rows."""
        return CELL_BYTES * self._decode.fields if isinstance(self._decode, JsonDecoder) else 0

    def _size_of(self, content: Any, value: Any) -> int:
        """Return the approximate memory of a decoded value."""
        array = value[0] if isinstance(value, tuple) else value
        if isinstance(array, np.ndarray):
            return int(array.nbytes)
        cells = self._decode.cells if isinstance(self._decode, TypedJsonDecoder) else 0
        return JSON_GROWTH * len(content) + CELL_BYTES * cells

    def _columns(self, decoded: list[Any]) -> dict[str, Any]:
        name, *rate = self._spec.columns_added
        if rate:
            amplitudes, rates = ([pair and pair[at] for pair in decoded] for at in (0, 1))
            return {name: amplitudes, SAMPLE_RATE: pa.array(rates, pa.int64())}
        complete = decoded and all(value is not None for value in decoded)
        if isinstance(self._decode, TypedJsonDecoder):
            return {name: pa.array(decoded, self._decode.type)}
        if isinstance(self._spec, DecodeImage) and complete:
            return {name: images.to_arrow(decoded, self._spec.size)}
        return {name: decoded}


def decoder_of(step: str, decode: Decode) -> Callable[[Any], Any]:
    """Return the function that decodes one value. Raises ModelLoad if its library is missing."""
    match decode:
        case DecodeImage(mode=mode, size=size, max_pixels=max_pixels):
            picture = PictureOptions(mode=mode, size=size, max_pixels=max_pixels)
            return lambda content: images.decode(_bytes(content), picture)
        case DecodeAudio():
            require_package(f"step '{step}'", "soundfile", FORMATS_EXTRA, ModelLoad)
            from batchinference.pipeline.media.recordings import (
                decode_audio,  # needs libraries of an extra
            )

            options = AudioOptions(sample_rate=decode.sample_rate, mono=decode.mono)
            return lambda content: decode_audio(_bytes(content), options)
        case DecodeText(encoding=encoding):
            return lambda content: _bytes(content).decode(encoding)
        case DecodeJson(fields=fields):
            declared = {name: parse_json_type(kind) for name, kind in (fields or {}).items()}
            return TypedJsonDecoder(declared) if declared else JsonDecoder()


def _bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise TypeError(f"expected bytes, got {type(content).__name__}")
    return content
