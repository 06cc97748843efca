"""Opens the Parquet files of an output as one dataset. Others may have written these files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.location import Location


def files_of(output: Location) -> list[pafs.FileInfo]:
    """Return the visible files of an output that are reached without a symbolic link, by path."""
    found = output.without_links(output.visible_files())
    return sorted(found, key=lambda info: str(info.path))


def parquet_dataset(
    output: Location, files: Sequence[pafs.FileInfo], inspected: int | None = None
) -> pads.FileSystemDataset:
    """Return files of an output as a dataset, with their columns and partition columns.

    If `inspected` is given, the types of that many files are read first, and those of all files
    only if a column still has no type. Raises UnsafeColumn."""
    factory = pads.FileSystemDatasetFactory(
        output.filesystem,
        [info.path for info in files],
        pads.ParquetFileFormat(),
        pads.FileSystemFactoryOptions(
            partition_base_dir=output.path, partitioning=pads.HivePartitioning.discover()
        ),
    )
    schema = factory.inspect(promote_options="permissive", fragments=inspected)
    if inspected is not None and any(pa.types.is_null(field.type) for field in schema):
        schema = factory.inspect(promote_options="permissive")  # the column is empty in some files
    return factory.finish(checked(schema))


def fragments_of(dataset: pads.FileSystemDataset) -> Iterator[pads.ParquetFileFragment]:
    """Yield a new fragment for each file. A fragment keeps the footer that it has read, and the
    dataset keeps its own fragments."""
    for file in dataset.get_fragments():
        yield dataset.format.make_fragment(file.path, dataset.filesystem, file.partition_expression)
