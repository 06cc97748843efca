"""The library `datasets` of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from traps.case import Row

datasets.disable_progress_bars()


def load(kind: str, directory: Path, **options: Any) -> datasets.Dataset:
    """Return the rows of a directory, as `load_dataset` finds them."""
    if files := options.pop("data_files", None):
        options["data_files"] = [str(directory / "in" / file) for file in files]
    else:
        options["data_dir"] = str(directory / "in")
    cache = str(directory / "cache")
    return datasets.load_dataset(kind, split="train", cache_dir=cache, **options)


def read_csv(directory: Path, texts: Sequence[str] = (), **options: Any) -> list[Row]:
    """Read CSV files. `texts` declares all columns as texts."""
    if texts:
        options["features"] = datasets.Features(dict.fromkeys(texts, datasets.Value("string")))
    return list(load("csv", directory, **options))


def read_json(directory: Path, **options: Any) -> list[Row]:
    return list(load("json", directory, **options))


def read_parquet(directory: Path, **options: Any) -> list[Row]:
    return list(load("parquet", directory, **options))


def read_text(directory: Path, **options: Any) -> list[Row]:
    return list(load("text", directory, **options))


def read_images(directory: Path, **options: Any) -> list[Row]:
    document = load("imagefolder", directory, drop_labels=True, **options)
    paths = [
        row["image"]["path"] for row in document.cast_column("image", datasets.Image(decode=False))
    ]
    return [
        {"path": path, "image": np.asarray(row["image"].convert("RGB"))}
        for path, row in zip(paths, document, strict=True)
    ]


def read_webdataset(directory: Path, **options: Any) -> list[Row]:
    return list(load("webdataset", directory, **{"data_files": ["*.tar"], **options}))
