"""Opens the Parquet files of an output as one dataset. Others may have written these files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.dataset as pads
import pyarrow.fs as pafs

from batchinference.pipeline.storage.arrow_files import checked
from batchinference.pipeline.storage.location import Location


def files_of(output: Location) -> list[pafs.FileInfo]:
    """Return the visible files of an output that are reached without a symbolic link, by path."""
    found = output.without_links(output.visible_files())
    return sorted(found, key=lambda info: str(info.path))


def parquet_dataset(output: Location, files: Sequence[pafs.FileInfo]) -> pads.FileSystemDataset:
    """Return files of an output as a dataset, with their columns and partition columns.

    Raises UnsafeColumn."""
    factory = pads.FileSystemDatasetFactory(
        output.filesystem,
        [info.path for info in files],
        pads.ParquetFileFormat(),
        pads.FileSystemFactoryOptions(
            partition_base_dir=output.path, partitioning=pads.HivePartitioning.discover()
        ),
    )
    schema = factory.inspect(promote_options="permissive")
    return factory.finish(checked(schema))
