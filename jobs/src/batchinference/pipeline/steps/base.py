"""The interface of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class TransformResult:
    """The result of a batch if not every row became exactly one row.

    `parents` holds, for each row of `table`, the index of the batch row that it was made from, in
    ascending order (int64). `failed` maps the index of each failed batch row to its error. All
    other batch rows that are not in `parents` are filtered rows.
    """

    table: pa.Table
    parents: np.ndarray
    failed: Mapping[int, Exception] = field(default_factory=dict)


class Transform(Protocol):
    """A step that transforms the user's columns. It returns a table if each row of the batch became
    one row, in the same order; otherwise a TransformResult."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult: ...
