"""Daft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import daft
import numpy as np
from daft import col

from traps.case import Row


def rows(frame: daft.DataFrame) -> list[Row]:
    return list(frame.to_pylist())


def read_csv(directory: Path, pattern: str = "", **options: Any) -> list[Row]:
    return rows(daft.read_csv(str(directory / "in" / pattern), **options))


def read_json(directory: Path, pattern: str = "", **options: Any) -> list[Row]:
    return rows(daft.read_json(str(directory / "in" / pattern), **options))


def read_parquet(directory: Path, pattern: str = "", **options: Any) -> list[Row]:
    return rows(daft.read_parquet(str(directory / "in" / pattern), **options))


def read_text(directory: Path, pattern: str = "", **options: Any) -> list[Row]:
    return rows(daft.read_text(str(directory / "in" / pattern), **options))


def read_images(
    directory: Path, pattern: str = "**", mode: str = "RGB", **options: Any
) -> list[Row]:
    files = daft.from_glob_path(str(directory / "in" / pattern)).select("path")
    result = files.with_column("image", col("path").download().decode_image(mode=mode, **options))
    return [{**row, "image": np.asarray(row["image"])} for row in rows(result)]


def read_audio(directory: Path, pattern: str = "**") -> list[Row]:
    from daft.functions import audio_file, audio_metadata

    files = daft.from_glob_path(str(directory / "in" / pattern)).select("path")
    opened = files.with_column("file", audio_file(col("path")))
    return rows(opened.with_column("about", audio_metadata(col("file"))).exclude("file"))


def read_video(directory: Path, pattern: str = "**", size: tuple[int, int] = (16, 32)) -> list[Row]:
    result = rows(
        daft.read_video_frames(
            str(directory / "in" / pattern), image_height=size[0], image_width=size[1]
        )
    )
    return [
        {"path": row["path"], "frame": np.asarray(row["data"]), "frame_index": row["frame_index"]}
        for row in result
    ]


def read_webdataset(directory: Path, pattern: str = "*.tar", **options: Any) -> list[Row]:
    from daft.functions import decode_image_file

    result = daft.read_webdataset(str(directory / "in" / pattern), **options)
    for field in result.schema():
        if "Image" in str(field.dtype):
            result = result.with_column(field.name, decode_image_file(col(field.name), mode="RGB"))
    return rows(result)
