"""What a step is to the pipeline."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa


class Transform(Protocol):
    """A step that gives each row new columns: as many rows come out as went in, in their order.

    The tables hold the user's columns alone.
    """

    def __call__(self, batch: pa.Table) -> pa.Table: ...
