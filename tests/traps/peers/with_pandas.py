"""pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from traps.case import Row


def rows(frame: pd.DataFrame) -> list[Row]:
    return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))


def files(directory: Path, pattern: str) -> list[Path]:
    return sorted((directory / "in").glob(pattern))


def read_csv(directory: Path, pattern: str = "*.csv", **options: Any) -> list[Row]:
    return rows(pd.concat(pd.read_csv(file, **options) for file in files(directory, pattern)))


def read_json(directory: Path, pattern: str = "*.json*", **options: Any) -> list[Row]:
    options = {"lines": True, **options}
    return rows(pd.concat(pd.read_json(file, **options) for file in files(directory, pattern)))


def read_parquet(directory: Path, **options: Any) -> list[Row]:
    return rows(pd.read_parquet(directory / "in", **options))
