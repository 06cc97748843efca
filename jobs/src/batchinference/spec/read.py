"""What to read: one model a format, with the options that this format has."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import DELIMITER, ColumnName, OptionsModel, SpecModel
from batchinference.spec.uris import Uri

Paths = Annotated[list[Uri], Field(min_length=1, max_length=256)]
Columns = Annotated[list[ColumnName], Field(min_length=1, max_length=256)]
Pixels = Annotated[int, Field(ge=1, le=65536)]


class FileOptions(OptionsModel):
    """Options of every format that is made of files."""

    include_paths: bool = False
    """Add a column `path` with the address of the file that the row came from."""
    file_extensions: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=16)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """Endings, without the dot, that a file in a directory must have to be read.
    Each format has its usual ones."""


class ImageOptions(FileOptions):
    mode: Literal["RGB", "RGBA", "L"] = "RGB"
    """Pillow's name of the colour mode that every image is converted to."""
    size: Annotated[list[Pixels], Field(min_length=2, max_length=2)] | None = None
    """Height and width in pixels that every image is resized to. Models want one size, and
    small pixels travel cheaply."""


class ParquetOptions(FileOptions):
    columns: Columns | None = None
    """The columns to read; the others are never fetched."""


class JsonOptions(FileOptions):
    lines: bool = True
    """One JSON object a line (JSON Lines). False: a file is one array of objects."""


class CsvOptions(FileOptions):
    delimiter: Annotated[str, Field(pattern=DELIMITER, max_length=1)] = ","
    """The character between two fields."""
    column_names: Columns | None = None
    """The names of the columns of files that have no header line."""


class TextOptions(FileOptions):
    encoding: Annotated[str, Field(min_length=1, max_length=32)] = "utf-8"
    """The name that Python gives the encoding."""
    drop_empty_lines: bool = True
    """Leave out lines that hold nothing but white space."""


class BinaryOptions(FileOptions):
    pass


class ReadModel(SpecModel):
    paths: Paths
    """Files, directories (read with their subdirectories) and globs; local or s3://."""


class ReadImages(ReadModel):
    """Pictures, one a row, in a column `image` of height x width x channels (uint8)."""

    format: Literal["images"]
    """The format of the files."""
    options: ImageOptions = ImageOptions()
    """Options of the format."""


class ReadParquet(ReadModel):
    """Parquet files with their own columns."""

    format: Literal["parquet"]
    """The format of the files."""
    options: ParquetOptions = ParquetOptions()
    """Options of the format."""


class ReadJson(ReadModel):
    """JSON files; the fields of an object are the columns."""

    format: Literal["json"]
    """The format of the files."""
    options: JsonOptions = JsonOptions()
    """Options of the format."""


class ReadCsv(ReadModel):
    """Files of separated values with a header line."""

    format: Literal["csv"]
    """The format of the files."""
    options: CsvOptions = CsvOptions()
    """Options of the format."""


class ReadText(ReadModel):
    """Text files, one line a row, in a column `text`."""

    format: Literal["text"]
    """The format of the files."""
    options: TextOptions = TextOptions()
    """Options of the format."""


class ReadBinary(ReadModel):
    """Files of any kind, one a row, in a column `bytes`."""

    format: Literal["binary"]
    """The format of the files."""
    options: BinaryOptions = BinaryOptions()
    """Options of the format."""


Read = Annotated[
    ReadImages | ReadParquet | ReadJson | ReadCsv | ReadText | ReadBinary,
    Field(discriminator="format"),
]
