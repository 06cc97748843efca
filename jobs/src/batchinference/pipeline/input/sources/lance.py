"""Reads Lance datasets with Ray's datasource."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import lance
import numpy as np

from batchinference.pipeline.column_names import check_known
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.planning import MAX_TASKS
from batchinference.pipeline.input.sources import TableInput
from batchinference.pipeline.ray_data_compat import LanceDatasource
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import LanceOptions, ReadLance

_SOURCE_LINE = re.compile(r",? ?\S+\.rs:\d+:\d+")
"""Matches source code locations in error messages of Lance."""


def open_source(read: ReadLance) -> TableInput:
    """Return a version of a dataset as an input. Raises BadInput that names the incorrect field."""
    options, directory = read.options, Location(read.path, read.storage)
    with _errors_as_bad_input(f"read.path '{read.path}'"):
        uri, settings = directory.library_uri, directory.storage_options
        dataset = lance.dataset(uri, storage_options=settings)
    with _errors_as_bad_input("read.options.version"):
        dataset = dataset.checkout_version(options.version or dataset.version)
    columns: list[str] = options.columns or dataset.schema.names
    for name in columns:
        check_known("columns", name, dataset.schema.names, "the dataset")
    with _errors_as_bad_input("read.options.filter"):
        count = dataset.count_rows(options.filter)
    source = LanceDatasource(
        uri,
        dataset.version,
        options.columns,
        options.filter,
        settings,
        {"limit": options.limit} if options.limit else None,
    )
    # with a limit, one task reads all rows, because tasks cannot share the limit
    max_parts = 1 if options.limit else options.override_num_blocks or MAX_TASKS
    tasks = source.get_read_tasks(max_parts)
    return TableInput(
        "lance",
        [*tasks] or [list],  # without rows there is no task: `list` returns no blocks
        columns,
        RowCount(min(count, options.limit or count), estimated=False),
        directory=directory,
        repeatable=True,  # the version is fixed
        version=_version(dataset),
        origin=partial(_origin, dataset, options, max_parts),
    )


def _origin(
    dataset: lance.LanceDataset, options: LanceOptions, max_parts: int
) -> tuple[int, list[np.ndarray]]:
    """Return the version of the dataset, and the row IDs of each of at most `max_parts` parts."""
    fragments = dataset.get_fragments()
    ids = [
        dataset.scanner(
            ["_rowid"], options.filter, options.limit, fragments=[fragments[at] for at in part]
        ).to_table()["_rowid"]
        for part in np.array_split(range(len(fragments)), max(1, min(max_parts, len(fragments))))
    ]
    return dataset.version, [column.to_numpy() for column in ids]


def _version(dataset: lance.LanceDataset) -> str:
    """Return the version number and a digest of the paths of the data files. The number alone does
    not identify the content: a dataset that is created again at the same path begins at 1."""
    files = (file.path for fragment in dataset.get_fragments() for file in fragment.data_files())
    return f"{dataset.version}-{digest(chr(10).join(files).encode())[:16]}"


@contextmanager
def _errors_as_bad_input(field: str) -> Iterator[None]:
    """Convert errors of Lance to BadInput, with the name of the field."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the library raises many kinds
        raise BadInput(f"{field}: {_SOURCE_LINE.sub('', str(error))}") from None
