"""The decode step: decodes a column as images, audio, text or JSON."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import require_columns
from batchinference.pipeline.declared_types import arrow_type, fitting, parse_declared
from batchinference.pipeline.error_classification import is_about_the_file
from batchinference.pipeline.errors import FORMATS_EXTRA, ModelLoad, require_package
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.row_warnings import warnings_of_row
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.pipeline.steps.transform import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    as_result,
)
from batchinference.pipeline.type_widening import is_list, is_text
from batchinference.spec.column_types import ColumnType, parse_types
from batchinference.spec.decode import (
    SAMPLE_RATE,
    Decode,
    DecodeAudio,
    DecodeImage,
    DecodeJson,
    DecodeText,
)
from batchinference.spec.read import AudioOptions
from batchinference.text import decode_text


class JsonDecoder:
    """Decodes JSON objects with declared fields. Other fields of the objects are dropped."""

    def __init__(self, schema: dict[str, ColumnType]) -> None:
        self._schema, self.type = schema, arrow_type(schema)

    def __call__(self, content: bytes | str) -> Any:
        """Return the declared fields of a JSON object. Raises ValueError if the JSON is invalid,
        and TypeError if a value has another type."""
        value = parse_declared(content, self._schema)
        try:
            return fitting(value, self._schema)
        except TypeError:  # perhaps a field declared as `string` has a value that is not a text
            return fitting(parse_declared(content, self._schema, any_as_json=True), self._schema)


JSON_GROWTH = 16
"""The assumed memory of decoded JSON or text, as a multiple of the encoded length."""


class DecodeColumn(Transform):
    """Decodes each value of a column. A row whose value cannot be decoded is a failed row. A result
    ends after the row with which the decoded values reach RESULT_BYTES."""

    NEEDS_VALUES = True

    @classmethod
    def check(cls, step: str, settings: Decode, *, batch_size: int | str | None = None) -> None:  # noqa: ARG003
        cls(step, settings)

    @classmethod
    def check_types(cls, step: str, settings: Decode, known: pa.Table) -> None:
        column, is_json = settings.column, isinstance(settings, DecodeJson)
        kind = known.schema.field(column).type if column in known.column_names else pa.null()
        # a column with only nulls often has the type of floats
        is_other = pa.types.is_primitive(kind) and not pa.types.is_floating(kind)
        if is_other or is_list(kind) or (is_text(kind) and not is_json):
            needed = "bytes or texts" if is_json else "bytes"
            what = f"step '{step}': column '{column}' holds {kind}, and decode needs {needed}"
            to_fetch = "To fetch files by paths, set read.format to manifest"
            raise UnsuitableTypes(f"{what}. {to_fetch if is_text(kind) else 'Name another column'}")

    def __init__(self, step: str, decode: Decode) -> None:
        self._step, self._spec = step, decode
        self._decode = decoder_of(step, decode)
        self.result_columns = ResultColumns(step)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._spec.column], batch)
        decoded: list[Any] = []
        failed: dict[int, Exception] = {}
        size = rows = 0
        for row, value in enumerate(batch.column(self._spec.column)):
            try:
                content = self._content(value.as_py())
                with warnings_of_row(row):
                    output = None if content is None else self._decode(content)
            except Exception as error:
                if not is_about_the_file(error):
                    raise
                failed[row] = error
            else:
                decoded.append(output)
                size += 0 if content is None else self._size_of(content, output)
            rows += 1
            if size >= RESULT_BYTES:
                break
        result = self.result_columns.added(batch.slice(0, rows), self._columns(decoded), failed)
        return result if rows == batch.num_rows else replace(as_result(result), rows=rows)

    def _content(self, value: Any) -> Any:
        """Return the content to decode: the value, or the field `bytes` of a struct."""
        content = value.get("bytes") if isinstance(value, dict) else value
        if content is None and isinstance(value, dict):
            raise ValueError(f"column '{self._spec.column}' has a struct without 'bytes'")
        return content

    def _size_of(self, content: Any, value: Any) -> int:
        """Return the approximate memory of a decoded value in bytes."""
        array = value[0] if isinstance(value, tuple) else value
        return int(array.nbytes) if isinstance(array, np.ndarray) else JSON_GROWTH * len(content)

    def _columns(self, decoded: list[Any]) -> dict[str, Any]:
        """Return the values of the columns that the step adds: two for audio, else one."""
        name, *rate = self._spec.types
        if rate:
            amplitudes, rates = ([pair and pair[at] for pair in decoded] for at in (0, 1))
            return {name: amplitudes, SAMPLE_RATE: pa.array(rates, pa.int64())}
        has_no_null = decoded and all(value is not None for value in decoded)
        if isinstance(self._decode, JsonDecoder):
            return {name: pa.array(decoded, self._decode.type)}
        if isinstance(self._spec, DecodeImage) and has_no_null:
            from batchinference.pipeline.media.images import to_arrow

            return {name: to_arrow(decoded, self._spec.size)}
        return {name: decoded}


def decoder_of(step: str, decode: Decode) -> Callable[[Any], Any]:
    """Return the function that decodes one value. Raises ModelLoad if its library is missing."""
    match decode:
        case DecodeImage():
            from batchinference.pipeline.media import images  # imports all formats of Pillow

            return lambda content: images.decode(_bytes(content), decode)
        case DecodeAudio():
            for library in ("soundfile", "av"):
                require_package(f"step '{step}'", library, FORMATS_EXTRA, ModelLoad)
            from batchinference.pipeline.media.audio import decode_audio  # needs an extra

            max_bytes = AudioOptions.DEFAULT_ROW_BYTES
            return lambda content: decode_audio(_bytes(content), decode, max_bytes)
        case DecodeText(encoding=encoding):
            return lambda content: decode_text(_bytes(content), encoding)
        case DecodeJson(fields=fields):
            return JsonDecoder(parse_types(fields))


def _bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise TypeError(f"expected bytes, got {type(content).__name__}")
    return content
