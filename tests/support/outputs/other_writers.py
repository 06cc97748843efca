"""Programs that create a table, or append rows to it, with the library of its format, while a job
writes to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.outputs.tables import catalog_of

PROCESSES, MOST_ROWS = 4, 25
"""The number of programs, and how many rows each of them appends at most, one by one."""


def create_empty(format_: str, path: Path) -> None:
    """Create the table without rows, unless it exists."""
    none = pa.schema([("text", pa.string())]).empty_table()
    if format_ == "delta":
        import deltalake

        deltalake.write_deltalake(path / "out", none, mode="append")
    elif format_ == "iceberg":
        catalog = catalog_of(path)
        catalog.create_namespace_if_not_exists("ns")
        catalog.create_table_if_not_exists("ns.rows", none.schema)
    elif format_ == "lance" and not (path / "out" / "_versions").exists():
        import lance

        lance.write_dataset(none, path / "out")
    elif format_ == "sql":
        import sqlalchemy as sa

        with sa.create_engine(f"sqlite:///{path}/data.db").begin() as connection:
            connection.execute(sa.text("CREATE TABLE IF NOT EXISTS rows (text TEXT)"))


def append(format_: str, path: Path, text: str) -> None:
    """Append one row, as often as it conflicts with others."""
    row = pa.table({"text": [text]})
    if format_ == "delta":
        import deltalake

        deltalake.write_deltalake(path / "out", row, mode="append", schema_mode="merge")
    elif format_ == "iceberg":
        catalog_of(path).load_table("ns.rows").append(row)
    elif format_ == "lance":
        import lance

        lance.write_dataset(row, path / "out", mode="append")
    else:
        import sqlalchemy as sa

        engine = sa.create_engine(f"sqlite:///{path}/data.db", connect_args={"timeout": 60})
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO rows (text) VALUES (:text)"), {"text": text})


def _write(format_: str, path: Path, name: int, started: Any, stop: Event) -> None:
    for number in range(MOST_ROWS):
        while True:
            try:
                append(format_, path, f"writer {name} row {number}")
                break
            except Exception as error:
                described = f"{type(error).__name__}: {error}"
                if not any(each in described for each in ("onflict", "CommitFailed")):
                    raise
        started.release()
        if stop.is_set():
            break
    (path / f"writer-{name}").write_text(str(number + 1))


@contextmanager
def other_writers(format_: str, path: Path) -> Iterator[None]:
    """Append rows in several processes during the block, which begins after the first rows."""
    context = multiprocessing.get_context("spawn")
    started, stop = context.Semaphore(0), context.Event()
    processes = [
        context.Process(target=_write, args=(format_, path, name, started, stop), daemon=True)
        for name in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        for _ in processes:
            assert started.acquire(timeout=120)
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0] * PROCESSES


def rows_of_writers(path: Path) -> list[str]:
    """Return the rows that the programs have appended."""
    counts = {name: int((path / f"writer-{name}").read_text()) for name in range(PROCESSES)}
    return [f"writer {name} row {row}" for name, count in counts.items() for row in range(count)]
