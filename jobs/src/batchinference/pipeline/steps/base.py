"""What a step is to the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class TransformResult:
    """What came of a batch whose rows did not each become exactly one.

    `parents` holds for each row of `table` the number of the batch's row that it came of, in
    ascending order (int64). Rows that are nobody's parent were left out, but for those in
    `failed`: the error of each by its number in the batch.
    """

    table: pa.Table
    parents: np.ndarray
    failed: Mapping[int, Exception] = field(default_factory=dict)


class Transform(Protocol):
    """A step over the user's columns. It gives a table where each row of the batch became one, in
    their order, and else tells which became which."""

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult: ...
