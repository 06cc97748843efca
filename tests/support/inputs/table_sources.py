"""Table sources for tests: a database, a saved data set and a Lance data set."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS: list[dict[str, Any]] = [
    {"id": number, "text": f"text {number}", "score": number / 4} for number in range(120)
]
"""The rows of each source."""


def database(path: Path, rows: list[dict[str, Any]] = ROWS) -> str:
    """Create a SQLite database with the table `texts`; return its URL."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE texts (id INTEGER, text TEXT, score REAL)")
        connection.executemany("INSERT INTO texts VALUES (:id, :text, :score)", rows)
    return f"sqlite:///{path}"


def saved(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Save a data set of the library datasets, with the splits `train` and `test`."""
    import datasets

    train = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": train, "test": train.select(range(7))}).save_to_disk(path)
    return path


def lance_set(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """Write a Lance data set of several fragments; version 1 lacks the last 20 rows."""
    import lance

    lance.write_dataset(pa.Table.from_pylist(rows[:-20]), path, max_rows_per_file=40)
    lance.write_dataset(pa.Table.from_pylist(rows[-20:]), path, mode="append")
    return path
