"""The writers of all output formats. A module is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from pydantic.alias_generators import to_snake

from batchinference.pipeline.output.writers import FileWriter, RewritingWriter

if TYPE_CHECKING:
    from batchinference.spec.write import Write


WRITERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "parquet": ("ParquetWriter", ("compression",)),
    "json": ("JsonWriter", ("compression",)),
    "openaiBatch": ("OpenaiBatchWriter", ("custom_id_column", "response_column")),
    "csv": ("CsvWriter", ("compression", "delimiter")),
    "webdataset": ("WebdatasetWriter", ("key_column",)),
}
"""The class for each output format, and the fields of the spec that its constructor takes. The
module of the class has the name of the format in snake case, and is imported on first use."""


def writer_for(write: Write) -> FileWriter:
    """Return the writer for a format of files, with its options."""
    name, fields = WRITERS[write.format]
    module = importlib.import_module(f"{__package__}.{to_snake(write.format)}")
    return cast(FileWriter, getattr(module, name)(*(getattr(write, field) for field in fields)))


def rewriting_writer_for(write: Write) -> RewritingWriter | None:
    """Return the writer of an output; None if the writer cannot rewrite files."""
    writer = writer_for(write) if write.format in WRITERS else None
    return writer if isinstance(writer, RewritingWriter) else None
