"""Text, and bytes of any kind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.read.base import ReadFiles, RowOptions


class TextOptions(RowOptions):
    encoding: Annotated[str, Field(min_length=1, max_length=32)] = "utf-8"
    """The name that Python gives the encoding."""
    drop_empty_lines: bool = True
    """Leave out lines that hold nothing but white space."""


class ReadText(ReadFiles):
    """Text files, one line a row, in a column `text`."""

    format: Literal["text"]
    """The format of the files."""
    options: TextOptions = TextOptions()
    """Options of the format."""


class BinaryOptions(RowOptions):
    pass


class ReadBinary(ReadFiles):
    """Files of any kind, one a row, in a column `bytes`."""

    format: Literal["binary"]
    """The format of the files."""
    options: BinaryOptions = BinaryOptions()
    """Options of the format."""
