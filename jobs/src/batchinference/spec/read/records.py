"""Formats of deep learning: many records a file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import Columns, EachOnce
from batchinference.spec.read.base import ReadFiles, RowOptions
from batchinference.spec.read.media import ImageOptions


class TfrecordsOptions(RowOptions):
    USUAL_ROW_BYTES = 64 << 20

    list_columns: Columns | None = None
    """Features that are lists although the first records hold one value of each. Otherwise a
    feature that has a single value in them is a plain column."""


class ReadTfrecords(ReadFiles):
    """Files of tf.train.Example records, which may be compressed with gzip; the features are the
    columns."""

    format: Literal["tfrecords"]
    """The format of the files."""
    options: TfrecordsOptions = TfrecordsOptions()
    """Options of the format."""


class WebdatasetOptions(ImageOptions):
    decoder: bool = True
    """Decode members by their extension: pictures, JSON, text and the integers of .cls and
    .index. Others, and all when false, are bytes."""
    suffixes: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=64)]],
            Field(min_length=1, max_length=64),
            EachOnce,
        ]
        | None
    ) = None
    """The extensions, without the first dot, to read; the others are passed over. The first
    samples of a few archives must have each of them."""


class ReadWebdataset(ReadFiles):
    """Tar archives of samples: members that share a name up to its first dot are a row, with the
    name in `__key__` and a column for each extension."""

    format: Literal["webdataset"]
    """The format of the files."""
    options: WebdatasetOptions = WebdatasetOptions()
    """Options of the format."""
