"""The chunk step: divides long texts into chunks, with a row for each chunk."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import decoded, require_columns, with_column
from batchinference.pipeline.errors import PIPELINE_EXTRA, JobFailure, ModelLoad, require_package
from batchinference.pipeline.expression import check_text
from batchinference.pipeline.runtimes.model_files import (
    WEIGHTS,
    check_source,
    fetch_source,
    library_tokenizer,
    resolve,
)
from batchinference.pipeline.steps.transform import (
    RESULT_BYTES,
    Transform,
    TransformResult,
    all_failed,
    bytes_of_copy,
)
from batchinference.pipeline.text_chunks import Span, Splitter, Units, characters, tokens_of, words
from batchinference.pipeline.type_widening import is_text
from batchinference.spec.addresses import is_local
from batchinference.spec.chunk import END, INDEX, START, Chunk

_CHUNK_OF_NULL = Span(0, 0, 0)


class ChunkText(Transform):
    """Makes a row for each chunk of a text. A result ends after the row with which its size reaches
    `max_bytes`. The constructor raises ModelLoad for an unusable tokenizer."""

    @classmethod
    def check(cls, step: str, settings: Chunk, *, batch_size: int | str | None = None) -> None:  # noqa: ARG003
        if settings.tokenizer is not None:
            files = ("tokenizer.json", "tokenizer_config.json")
            check_source(settings.tokenizer, files, settings.revision, settings.storage)

    @classmethod
    def check_types(cls, step: str, settings: Chunk, known: pa.Table) -> None:
        check_text(step, settings.column, known, "chunk")

    def __init__(self, step: str, chunk: Chunk, max_bytes: int = RESULT_BYTES) -> None:
        self._step, self._column, self._max_bytes = step, chunk.column, max_bytes
        self._split = Splitter(_units(step, chunk), chunk.size, chunk.overlap)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, [self._column], batch)
        for name in (INDEX, START, END):
            if name in batch.column_names:
                raise JobFailure(
                    f"step '{self._step}' adds a column '{name}', and there is one already. Rename "
                    "it before this step with renameColumns"
                )
        column = decoded(batch.column(self._column))
        # a block with only nulls may have the null type
        if not is_text(column.type) and not pa.types.is_null(column.type):
            message = f"column '{self._column}' holds {column.type}, and chunk needs texts"
            return all_failed(batch.num_rows, TypeError(message))
        others = batch.drop_columns([self._column])
        spans, texts = self._first_chunks(column, others)
        result = _rows_of_chunks(batch, self._column, spans, pa.array(texts, column.type))
        return result if len(spans) == batch.num_rows else replace(result, rows=len(spans))

    def _first_chunks(
        self, column: pa.ChunkedArray, others: pa.Table
    ) -> tuple[list[list[Span]], list[str | None]]:
        """Return the spans of the chunks of each text, and all chunks. Stop after the text with
        which the result reaches its maximum size. `others` are the other columns of the batch."""
        spans: list[list[Span]] = []
        chunks: list[str | None] = []
        size = 0
        for row, value in enumerate(column):
            text = value.as_py()
            parts = [_CHUNK_OF_NULL] if text is None else list(self._split(text))
            spans.append(parts)
            chunks += [None if text is None else text[span.start : span.end] for span in parts]
            size += len(text or "") + len(parts) * bytes_of_copy(others, row, 1)
            if size >= self._max_bytes:
                break
        return spans, chunks


def _rows_of_chunks(
    batch: pa.Table, column: str, spans: list[list[Span]], chunks: pa.Array
) -> TransformResult:
    """Return a row for each chunk of the first rows of a batch, with the rows' other columns."""
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


def _units(step: str, chunk: Chunk) -> Units:
    if chunk.tokenizer is None:
        return words if chunk.unit == "words" else characters
    require_package(f"step '{step}'", "transformers", PIPELINE_EXTRA, ModelLoad)
    source = chunk.tokenizer
    if is_local(source):
        path = resolve(source, chunk.revision)
    else:
        path = fetch_source(source, chunk.storage, without=WEIGHTS)
    try:
        tokenizer = library_tokenizer(path, chunk.revision)
    except Exception as error:
        raise ModelLoad(
            f"step '{step}': the tokenizer of '{source}' cannot be loaded: {error}"
        ) from error
    if not tokenizer.is_fast:
        raise ModelLoad(
            f"chunk.tokenizer: '{source}' does not say where its tokens begin. Use unit: words, or "
            "a model with a file tokenizer.json"
        )
    return tokens_of(tokenizer)
