"""Column types that hold for all files of an input whose files carry none."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def agreed_schema(samples: list[bytes], parse: Callable[[bytes, pa.Schema], pa.Table]) -> pa.Schema:
    """The schema that the samples have in common: for each column the wider of two types, nothing
    for a column that is always empty. Samples that cannot be parsed have no say."""
    schemas = []
    for sample in samples:
        try:
            schemas.append(parse(sample, pa.schema([])).schema)
        except pa.ArrowInvalid:
            continue
    if not schemas:
        return pa.schema([])
    try:
        agreed = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        agreed = schemas[0]
    return pa.schema([field for field in agreed if not pa.types.is_null(field.type)])
