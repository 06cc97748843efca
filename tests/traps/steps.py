"""The functions of the python steps of the cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Batch = dict[str, np.ndarray]


def root() -> Any:
    """Return a model whose result for a negative number is NaN."""
    import torch

    class Root(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x)

    return Root()


class FailOnce:
    """Fails for a row, as long as there is a file `broken` in a directory."""

    def __init__(self, directory: str, row: int) -> None:
        self._broken, self._row = Path(directory) / "broken", row

    def __call__(self, batch: Batch) -> Batch:
        if self._broken.exists() and self._row in batch["n"]:
            raise ValueError("broken")
        return batch


def numbers(batch: Batch) -> dict[str, Any]:
    """Add a list of two numbers to each row."""
    return {**batch, "each": [[int(n), int(n) + 1000] for n in batch["n"]]}


def number_of_key(batch: Batch) -> dict[str, Any]:
    return {"n": [int(key) for key in batch["__key__"]]}


def number_of_frame(batch: Batch) -> dict[str, Any]:
    return {"n": batch["frame_index"]}


class WriteBeside:
    """Writes to the table of the job while the job runs: another writer."""

    def __init__(self, table: str, how: str) -> None:
        self._table, self._write = table, getattr(self, f"_{how}")

    def __call__(self, batch: Batch) -> Batch:
        self._write(1000 + int(batch["n"][0]))
        return batch

    def _delta(self, number: int, mode: str = "append") -> None:
        import deltalake

        deltalake.write_deltalake(self._table, pa.table({"n": [number]}), mode=mode)

    def _overwrite(self, number: int) -> None:
        self._delta(number, "overwrite")

    def _lance(self, number: int) -> None:
        import lance

        lance.write_dataset(pa.table({"n": [number]}), self._table, mode="append")

    def _files(self, number: int) -> None:
        pq.write_table(pa.table({"n": [number]}), f"{self._table}/other-{number}.parquet")

    def _iceberg(self, number: int) -> None:
        from traps.cases.runs import iceberg_table

        iceberg_table(Path(self._table).parent).append(pa.table({"n": [number]}))
