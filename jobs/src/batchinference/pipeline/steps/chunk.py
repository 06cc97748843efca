"""The chunk step: divides long texts into rows."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import require_columns, with_column
from batchinference.pipeline.errors import PIPELINE_EXTRA, JobFailure, ModelLoad, require_package
from batchinference.pipeline.expression import check_text
from batchinference.pipeline.runtimes.model_files import WEIGHTS, check, resolve, resolve_place
from batchinference.pipeline.steps import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    all_failed,
    bytes_to_repeat,
    of_first_rows,
)
from batchinference.pipeline.text_chunks import Span, Splitter, Units, characters, tokens_of, words
from batchinference.spec.addresses import is_local
from batchinference.spec.chunk import END, INDEX, START, Chunk

_NULL = Span(0, 0, 0)


class ChunkText(Transform):
    """Makes a row of each chunk of a text. Raises ModelLoad if the tokenizer cannot be used.

    If the rows of a batch would take too much memory, the result covers only its first rows."""

    @classmethod
    def check(cls, step: str, settings: Chunk, *, batch_size: int | str | None = None) -> None:  # noqa: ARG003
        if settings.tokenizer is not None:
            files = ("tokenizer.json", "tokenizer_config.json")
            check(settings.tokenizer, files, settings.revision, settings.storage)

    @classmethod
    def check_types(cls, step: str, settings: Chunk, known: pa.Table) -> None:
        check_text(step, settings.column, known, "chunk")

    def __init__(self, step: str, chunk: Chunk) -> None:
        self._step, self._column = step, chunk.column
        self._split = Splitter(_units(step, chunk), chunk.size, chunk.overlap)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._column], batch)
        for name in (INDEX, START, END):
            if name in batch.column_names:
                raise JobFailure(
                    f"step '{self._step}' adds a column '{name}', and there is one already. Rename "
                    "it before this step with renameColumns"
                )
        column = batch.column(self._column)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not _is_text(column.type):
            message = f"column '{self._column}' holds {column.type}, and chunk needs texts"
            return all_failed(batch.num_rows, TypeError(message))
        others = batch.drop_columns([self._column])
        spans, texts = self._first_chunks(column, others)
        result = _rows(batch, self._column, spans, pa.array(texts, column.type))
        return result if len(spans) == batch.num_rows else of_first_rows(result, len(spans))

    def _first_chunks(
        self, column: pa.ChunkedArray, others: pa.Table
    ) -> tuple[list[list[Span]], list[str | None]]:
        """Return the spans of the first texts, until their rows are large, and all chunks."""
        spans: list[list[Span]] = []
        chunks: list[str | None] = []
        size = 0
        for row, value in enumerate(column):
            text = value.as_py()
            parts = [_NULL] if text is None else list(self._split(text))
            spans.append(parts)
            chunks += [None if text is None else text[span.start : span.end] for span in parts]
            size += len(text or "") + len(parts) * bytes_to_repeat(others, row, 1)
            if size >= RESULT_BYTES:
                break
        return spans, chunks


def _rows(
    batch: pa.Table, column: str, spans: list[list[Span]], chunks: pa.Array
) -> TransformResult:
    """Return the rows of the chunks. The other columns are repeated."""
    parents = np.repeat(np.arange(len(spans)), [len(parts) for parts in spans])
    others = batch.drop_columns([column]).take(pa.array(parents))
    if batch.num_columns > 1:
        table = others.add_column(batch.schema.get_field_index(column), column, chunks)
    else:
        table = pa.table({column: chunks})
    numbers = {
        INDEX: chain.from_iterable(range(len(parts)) for parts in spans),
        START: (span.start for parts in spans for span in parts),
        END: (span.end for parts in spans for span in parts),
    }
    is_null = chunks.is_null().to_numpy(zero_copy_only=False)
    for name, values in numbers.items():
        array = np.fromiter(values, dtype=np.int64, count=len(parents))
        table = with_column(table, name, pa.array(array, mask=is_null))
    return TransformResult(table, parents)


def _is_text(kind: pa.DataType) -> bool:
    is_null: bool = pa.types.is_null(kind)  # null in the whole block; other blocks may have texts
    return is_null or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _units(step: str, chunk: Chunk) -> Units:
    if chunk.tokenizer is None:
        return words if chunk.unit == "words" else characters
    require_package(f"step '{step}'", "transformers", PIPELINE_EXTRA, ModelLoad)
    import transformers

    source, revision = chunk.tokenizer, {"revision": chunk.revision} if chunk.revision else {}
    if is_local(source):
        path = resolve(source, chunk.revision)
    else:
        path = resolve_place(source, chunk.storage, without=WEIGHTS)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, **revision
        )
    except Exception as error:
        raise ModelLoad(
            f"step '{step}': the tokenizer of '{source}' cannot be loaded: {error}"
        ) from error
    if not tokenizer.is_fast:
        raise ModelLoad(
            f"chunk.tokenizer: '{source}' does not say where its tokens begin. Use unit words, or "
            "a model with a file tokenizer.json"
        )
    return tokens_of(tokenizer)
