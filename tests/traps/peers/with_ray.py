"""Ray Data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray.data

from traps.case import Row


def rows(dataset: ray.data.Dataset) -> list[Row]:
    return list(dataset.take_all())


def read_csv(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_csv(str(directory / "in"), **options))


def read_json(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_json(str(directory / "in"), **options))


def read_parquet(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_parquet(str(directory / "in"), **options))


def read_text(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_text(str(directory / "in"), **options))


def read_images(directory: Path, **options: Any) -> list[Row]:
    options = {"include_paths": True, "mode": "RGB", **options}
    return rows(ray.data.read_images(str(directory / "in"), **options))


def read_audio(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_audio(str(directory / "in"), include_paths=True, **options))


def read_webdataset(directory: Path, **options: Any) -> list[Row]:
    return rows(ray.data.read_webdataset(str(directory / "in"), **options))
