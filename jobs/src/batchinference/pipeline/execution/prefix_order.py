"""Orders rows so that prompts with the same beginning follow each other.

A language model can reuse its state after the beginning of a prompt (prefix caching). The following
prompts must begin in the same way. Rows with the same beginning therefore form a group. The groups
are in the order of their first rows, so a commit has few row ranges."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import decoded
from batchinference.pipeline.execution.block_codec import ID

BEGINNING = 256
"""Number of characters that must be equal, after the beginning that all prompts share. A model
computes a shorter beginning in almost no time."""
_SEPARATOR = pa.scalar("\0", pa.large_string())


def prefix_order(block: pa.Table, columns: Sequence[str]) -> pa.Array | None:
    """Return the row indexes of a block in the order of the prompts, which consist of `columns`.
    None if rows keep their order: no beginnings are equal, or an input row has several rows."""
    names = [name for name in columns if name in block.column_names]
    columns_of_texts = [t for name in names if (t := _texts(block.column(name))) is not None]
    if not columns_of_texts or ID not in block.column_names:
        return None
    ids = block.column(ID).drop_null()
    if len(pc.unique(ids)) < len(ids):
        return None
    texts = pc.binary_join_element_wise(*columns_of_texts, _SEPARATOR).combine_chunks()
    first, last = pc.min_max(texts).as_py().values()
    same = len(os.path.commonprefix([first or "", last or ""]))  # noqa: RUF071 - of texts
    begins = pc.utf8_slice_codeunits(texts, same, same + BEGINNING).dictionary_encode()
    if len(begins.dictionary) == len(begins) - begins.null_count:
        return None
    table = pa.table({"group": begins.indices, "text": texts})
    return pc.sort_indices(table, sort_keys=[("group", "ascending"), ("text", "ascending")])


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a text column, or a nested column as texts; None for any other column."""
    column = decoded(column)
    if pa.types.is_nested(column.type):
        return pa.chunked_array([pa.array(map(str, column.to_pylist()), pa.large_string())])
    has_texts = column.type in (pa.string(), pa.large_string())
    return column.cast(pa.large_string()) if has_texts else None


def in_order_of(block: pa.Table, results: pa.Table) -> pa.Table:
    """Return the results in the order of the rows of `block`."""
    if ID not in results.column_names:
        return results
    ids = pc.index_in(results.column(ID), block.column(ID).drop_null())
    return results.take(pc.sort_indices(ids))
