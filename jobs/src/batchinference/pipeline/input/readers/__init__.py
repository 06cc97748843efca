"""One module a format: from the bytes of a file to tables of rows."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.errors import FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.readers.base import Reader

if TYPE_CHECKING:
    from batchinference.spec.read import Read


@dataclass(frozen=True)
class Entry:
    """Where a reader is: a class of a module in this package. `libraries` are those of the extra
    `formats` that it imports."""

    module: str
    name: str
    libraries: tuple[str, ...] = ()


READERS = {
    "images": Entry("whole_file", "ImageReader"),
    "parquet": Entry("parquet", "ParquetReader"),
    "json": Entry("json", "JsonReader"),
    "csv": Entry("csv", "CsvReader"),
    "text": Entry("text", "TextReader"),
    "binary": Entry("whole_file", "BinaryReader"),
    "numpy": Entry("numpy", "NumpyReader"),
    "audio": Entry("whole_file", "AudioReader", ("soundfile", "av")),
    "video": Entry("video", "VideoReader", ("av",)),
    "tfrecords": Entry("tfrecords", "TfrecordsReader", ("google_crc32c",)),
    "webdataset": Entry("webdataset", "WebdatasetReader"),
    "manifest": Entry("url_list", "ManifestReader"),
}
"""The readers by their formats in the specification. A module is imported when it is needed."""


def reader_for(read: Read) -> Reader:
    """The reader of a format, with its options. Raises BadInput when a library is missing."""
    entry = READERS[read.format]
    for library in entry.libraries:
        require_package(f"the format '{read.format}'", library, FORMATS_EXTRA, BadInput)
    module = importlib.import_module(f"{__name__}.{entry.module}")
    return cast(Reader, getattr(module, entry.name)(read.options))
