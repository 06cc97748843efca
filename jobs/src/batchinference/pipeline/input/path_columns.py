"""Adds columns with values from the paths of files: the path itself, and partition values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from batchinference.pipeline.declared_types import cast_column, cast_texts, name_of
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.partitions import partition_parts, partition_values
from batchinference.spec.column_types import ColumnType, parse_types

if TYPE_CHECKING:
    from batchinference.spec.read import FileOptions

_PATTERNS = {"int64": r"0|-?[1-9][0-9]{0,18}", "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}
"""The pattern of partition values by inferred type. Other values are text, such as 007."""


@dataclass(frozen=True)
class PathColumns:
    """The columns to add: `path_name`, and a column for each `key=value` part of the path."""

    path_name: str | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    """The type of each column from a `key=value` part, by its partition key."""

    @classmethod
    def of(cls, options: FileOptions, paths: list[str]) -> PathColumns:
        """Return the columns for files at these paths. Raises BadInput if parts `key=value` are
        missing or repeated, or if paths have different keys. Also raises BadInput if a value does
        not fit its declared type, or if a key equals `pathColumn`."""
        partitions = [partition_values(path) for path in paths] if options.partitioning else []
        keys = list(partitions[0]) if partitions else []
        if partitions:
            _check_keys(keys, partitions, paths)
        if options.path_name in keys:
            raise BadInput(
                f"{paths[0]} has a part '{options.path_name}=' already. Set "
                "read.options.pathColumn to another name"
            )
        declared = parse_types(options.types)
        columns = {key: {values[key]: path for values, path in zip(partitions, paths, strict=True)}
                   for key in keys}  # fmt: skip
        types = {key: declared.get(key) or _inferred(texts) for key, texts in columns.items()}
        for key, texts in columns.items():
            _check_values(key, types[key], texts)
        return cls(options.path_name, types)

    @property
    def names(self) -> list[str]:
        """The names of the added columns."""
        return [*self.types, *filter(None, [self.path_name])]

    def check(self, names: Sequence[str], uri: str) -> None:
        """Raise BadInput if a file has a column with the name of the added path column."""
        if self.path_name in names:
            raise BadInput(
                f"{uri} has a column '{self.path_name}' of its own. Set read.options.pathColumn to "
                "another name"
            )

    def without_keys(self, table: pa.Table, uri: str) -> pa.Table:
        """Return rows of a file without columns that repeat a partition key. Raises ValueError if
        such a column has another value than the path."""
        for key, text in partition_values(uri).items():
            if key in table.column_names:
                value = _cast([text], self.types[key])[0]
                own = table.column(key)
                if not _equals(own, value, self.types[key]):
                    raise ValueError(
                        f"column '{key}' of the file is {own[0]}, and {key}={text} in its path. "
                        "Correct one of them, or remove read.options.partitioning"
                    )
                table = table.drop_columns([key])
        return table

    def added_to(self, table: pa.Table, uris: list[str]) -> pa.Table:
        """Return rows with these columns added. `uris` has the file of all rows, or a file for each
        row. Raises BadInput like `check`."""
        self.check(table.column_names, uris[0])
        partitions = [partition_values(uri) for uri in uris] if self.types else []
        for name in self.names:
            kind = self.types.get(name, "string")
            texts = [values[name] for values in partitions] if name in self.types else uris
            column = _cast(texts, kind)
            if len(uris) == 1:
                column = pa.repeat(column[0], table.num_rows)
            table = table.append_column(name, column)
        return table


def _check_keys(keys: list[str], partitions: list[dict[str, str | None]], paths: list[str]) -> None:
    if not keys:
        raise BadInput(f"read.options.partitioning: {paths[0]} has no part such as 'class=cat/'")
    for values, path in zip(partitions, paths, strict=True):
        if len(values) != partition_parts(path):
            raise BadInput(
                f"read.options.partitioning: {path} has a part twice. Rename one of them"
            )
        if list(values) != keys:
            raise BadInput(
                f"read.options.partitioning: {path} does not have the parts {', '.join(keys)}, as "
                f"{paths[0]} has"
            )


def _cast(texts: Sequence[str | None], kind: ColumnType) -> pa.ChunkedArray:
    return cast_texts(pa.chunked_array([texts], pa.string()), kind)[0]


def _equals(column: pa.ChunkedArray, value: pa.Scalar, kind: ColumnType) -> bool:
    """Return whether all values of a column, cast to `kind`, equal `value`."""
    try:
        cast = cast_column(column, kind)
    except (ValueError, NotImplementedError):
        return False
    if not value.is_valid:
        return bool(cast.null_count == len(cast))
    import pyarrow.compute as pc  # slow, and not needed by most commands that only read

    return bool(pc.all(pc.equal(cast, value).fill_null(False)).as_py())


def _inferred(texts: Iterable[str | None]) -> ColumnType:
    """Return the type that fits all values of a partition key. Null fits any type."""
    values = [text for text in texts if text is not None]
    for kind, pattern in _PATTERNS.items():
        if values and all(re.fullmatch(pattern, text) for text in values):
            _, misfits = cast_texts(pa.chunked_array([values]), kind)
            return "string" if misfits.any() else kind
    return "string"


def _check_values(key: str, kind: ColumnType, texts: Mapping[str | None, str]) -> None:
    """Raise BadInput if a value does not fit `kind`. `texts` maps each value to a path with it."""
    _, misfits = cast_texts(pa.chunked_array([list(texts)], pa.string()), kind)
    for text, misfit in zip(texts, misfits, strict=True):
        if misfit:
            raise BadInput(
                f"read.options.types.{key}: '{text}' in {texts[text]} is not {name_of(kind)}. "
                "Declare another type, such as string"
            )
