"""Corrects pyiceberg (0.12), which reads and writes null lists or maps of structs as empty.

Importing this module changes `ArrowProjectionVisitor`. With this class, pyiceberg converts rows
between the types of files and of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import ArrowProjectionVisitor


def _keeping_nulls(project: Callable[..., pa.Array | None]) -> Callable[..., pa.Array | None]:
    """Return a method that converts lists or maps as the method `project` does, but keeps nulls."""

    def projected(visitor: Any, kind: Any, values: pa.Array | None, *parts: Any) -> pa.Array | None:
        result = project(visitor, kind, values, *parts)
        if result is None or values is None or result.null_count == values.null_count:
            return result
        null = pa.scalar(None, result.type)
        return pc.if_else(values.is_valid(), result, null).cast(result.type)

    return projected


for _name in ("list", "map"):
    setattr(ArrowProjectionVisitor, _name, _keeping_nulls(getattr(ArrowProjectionVisitor, _name)))
