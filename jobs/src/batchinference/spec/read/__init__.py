"""What to read: one model a format, with the options that this format has."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.read.base import Columns, FileOptions, ReadModel
from batchinference.spec.read.media import ImageOptions, ReadImages
from batchinference.spec.read.plain import BinaryOptions, ReadBinary, ReadText, TextOptions
from batchinference.spec.read.tables import (
    CsvOptions,
    JsonOptions,
    ParquetOptions,
    ReadCsv,
    ReadJson,
    ReadParquet,
)

Read = Annotated[
    ReadImages | ReadParquet | ReadJson | ReadCsv | ReadText | ReadBinary,
    Field(discriminator="format"),
]

__all__ = [
    "BinaryOptions",
    "Columns",
    "CsvOptions",
    "FileOptions",
    "ImageOptions",
    "JsonOptions",
    "ParquetOptions",
    "Read",
    "ReadBinary",
    "ReadCsv",
    "ReadImages",
    "ReadJson",
    "ReadModel",
    "ReadParquet",
    "ReadText",
    "TextOptions",
]
