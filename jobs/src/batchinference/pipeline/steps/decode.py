"""The decode step: decodes a column of bytes as images, audio, text or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.imports import FORMATS_EXTRA, need
from batchinference.pipeline.media import images
from batchinference.pipeline.steps.base import TransformResult
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.spec.decode import (
    SAMPLE_RATE,
    Decode,
    DecodeAudio,
    DecodeImage,
    DecodeJson,
    DecodeText,
)
from batchinference.spec.read import AudioOptions, PictureOptions

MAX_JSON_DEPTH = 100
MAX_JSON_FIELDS = 4000


class DecodeColumn:
    """Decodes each value of a column. Rows whose value cannot be decoded are failed rows."""

    def __init__(self, step: str, decode: Decode) -> None:
        self._step, self._spec = step, decode
        self._decode = decoder_of(step, decode)
        self._made = ResultColumns(step)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._spec.column], batch)
        decoded: list[Any] = []
        failed: dict[int, Exception] = {}
        for row, value in enumerate(batch.column(self._spec.column)):
            try:
                decoded.append(self._decoded(value.as_py()))
            except Exception as error:
                if not is_about_the_file(error):
                    raise
                failed[row] = error
        return self._made.added(batch, self._columns(decoded), failed)

    def _decoded(self, value: Any) -> Any:
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict):
            raise ValueError(f"column '{self._spec.column}' has a struct without 'bytes'")
        return None if content is None else self._decode(content)

    def _columns(self, decoded: list[Any]) -> dict[str, Any]:
        name, *rate = self._spec.columns_added
        if rate:
            amplitudes, rates = ([pair and pair[at] for pair in decoded] for at in (0, 1))
            return {name: amplitudes, SAMPLE_RATE: pa.array(rates, pa.int64())}
        complete = decoded and all(value is not None for value in decoded)
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
            need(f"step '{step}'", "soundfile", FORMATS_EXTRA, ModelLoad)
            from batchinference.pipeline.media import audio  # needs libraries of an extra

            options = AudioOptions(sample_rate=decode.sample_rate, mono=decode.mono)
            return lambda content: audio.decode(_bytes(content), options)
        case DecodeText(encoding=encoding):
            return lambda content: _bytes(content).decode(encoding)
        case DecodeJson():
            return _json


def _bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise TypeError(f"expected bytes, got {type(content).__name__}")
    return content


def _json(content: Any) -> Any:
    """Return the value of a JSON document. Raises ValueError if it is too deep or has too many
    fields: Arrow reads values recursively, and a column has every field of all its rows."""
    value = json.loads(content if isinstance(content, str) else _bytes(content))
    level, fields = [value], 0
    for _ in range(MAX_JSON_DEPTH):
        maps = [one for one in level if isinstance(one, dict)]
        fields += sum(map(len, maps))
        if fields > MAX_JSON_FIELDS:
            raise ValueError(f"the JSON has more than {MAX_JSON_FIELDS} fields")
        children = [child for one in maps for child in one.values()]
        level = children + [child for one in level if isinstance(one, list) for child in one]
        if not level:
            return value
    raise ValueError(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels")
