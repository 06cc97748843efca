"""Outputs as finished jobs leave them, made without a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.layout import Layout
from batchinference.pipeline.storage import Address
from batchinference.pipeline.writers import writer_for
from batchinference.spec import parse
from batchinference.spec.secrets import without_secrets
from support.documents import document


def finished_output(directory: Path | str, *tables: pa.Table, **spec: Any) -> str:
    """An output of one file a table; `spec` replaces fields of its job. Returns its path."""
    write = {"format": "parquet", "path": str(directory), **spec.pop("write", {})}
    job = parse(document(write=write, **spec)).spec
    layout, writer = Layout.of(job), writer_for(job.write)
    for number, table in enumerate(tables):
        for ending, content in writer.files(table):
            place = Address(str(directory)) / f"part-{number:04d}{ending}"
            place.write(content)
    layout.spec.write(json.dumps(without_secrets(job)).encode())
    layout.success.write(b"")
    return str(directory)


def vectors(rows: int, width: int, seed: int = 0) -> np.ndarray:
    """rows x width, float32, in all directions."""
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)


def embedded(matrix: np.ndarray, **columns: Any) -> pa.Table:
    """A table with these columns and the rows of the matrix in a column `embedding`."""
    lists = pa.array(list(matrix), pa.list_(pa.from_numpy_dtype(matrix.dtype)))
    return pa.table({**columns, "embedding": lists})
