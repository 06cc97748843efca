"""Returns the reader of a file format. The module of a reader is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.errors import DOCUMENTS_EXTRA, FORMATS_EXTRA, BadInput, require_package
from batchinference.pipeline.input.readers import Reader

if TYPE_CHECKING:
    from batchinference.spec.read import Read


READERS = {
    "images": ("images", "ImageReader"),
    "parquet": ("parquet", "ParquetReader"),
    "json": ("json", "JsonReader"),
    "openaiBatch": ("openai_batch", "OpenaiBatchReader"),
    "csv": ("csv", "CsvReader"),
    "text": ("text", "TextReader"),
    "binary": ("whole_file", "BinaryReader"),
    "numpy": ("numpy", "NumpyReader"),
    "audio": ("whole_file", "AudioReader", "soundfile", "av"),
    "video": ("video", "VideoReader", "av"),
    "webdataset": ("webdataset", "WebdatasetReader"),
    "manifest": ("url_manifest", "UrlManifestReader"),
    "documents": ("documents", "DocumentReader", "pypdfium2", "docx", "pptx", "lxml"),
}
"""By format: a module of this package, its reader class, and the libraries that it needs."""


def reader_class(file_format: str) -> type[Reader]:
    """Return the reader class of a format. Raises BadInput if a package is missing."""
    module, name, *libraries = READERS[file_format]
    extra = DOCUMENTS_EXTRA if file_format == "documents" else FORMATS_EXTRA
    for library in libraries:
        require_package(f"the format '{file_format}'", library, extra, BadInput)
    return cast(type[Reader], getattr(importlib.import_module(f"{__package__}.{module}"), name))


def reader_for(read: Read) -> Reader:
    """Return the reader for a read configuration. Raises BadInput if a package is missing."""
    return reader_class(read.format).of(read.options)
