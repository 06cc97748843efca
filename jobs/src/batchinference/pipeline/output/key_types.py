"""Checks whether the types of columns can be keys: of a table, of a store or of a WebDataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.type_widening import is_tensor, is_text
from batchinference.spec.problems import Problem
from batchinference.spec.write import Write
from batchinference.spec.write.tables import WriteStore

_EXACT = (
    *(pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal),
    *(pa.types.is_date, pa.types.is_time, pa.types.is_timestamp),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    *(pa.types.is_fixed_size_binary, pa.types.is_dictionary, pa.types.is_null),
    lambda kind: kind == pa.uuid(),
)
_OF_STORES = (pa.types.is_integer, pa.types.is_null, is_text, lambda kind: kind == pa.uuid())


@dataclass(frozen=True)
class KeyRule:
    """The types that the columns of a field of `write` may have, and the fix for other types."""

    field: str
    accepts: Callable[[pa.DataType], bool]
    fix: str

    def problems(self, fields: Iterable[pa.Field]) -> Iterator[str]:
        """Yield a message for each of the key columns `fields` whose type cannot be a key."""
        for field in fields:
            if not self.accepts(field.type):
                yield f"column '{field.name}' is {field.type}{self.fix}"


OF_TABLES = KeyRule(
    "key",
    lambda kind: any(is_key(kind) for is_key in _EXACT),
    ". A key has whole numbers, texts, dates, times, decimals, booleans, UUIDs or bytes. Name "
    "other columns",
)
OF_WEBDATASET = KeyRule(
    "keyColumn",
    lambda kind: not (pa.types.is_nested(kind) or is_tensor(kind)),
    ". A key is a text or a number. Name another column",
)


def of_store(store: str) -> KeyRule:
    """Return the rule for the key of a store, such as `qdrant`."""
    return KeyRule(
        "key",
        lambda kind: any(is_key(kind) for is_key in _OF_STORES),
        f", and the key of {store} is made of integers and texts. Make it text in a step",
    )


def key_problems(write: Write, columns: pa.Schema) -> Iterator[Problem]:
    """Yield a problem for each key column whose type cannot be a key. `columns` are the known
    columns of the output; an unknown type is null."""
    of_key = of_store(write.format) if isinstance(write, WriteStore) else OF_TABLES
    for rule in (OF_WEBDATASET, of_key):
        keys = write.column_fields.get(rule.field, ())
        for message in rule.problems(columns.field(name) for name in keys if name in columns.names):
            yield Problem(f"spec.write.{rule.field}", message)
