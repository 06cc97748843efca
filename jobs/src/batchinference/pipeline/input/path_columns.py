"""Columns whose values come from the path of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from batchinference.pipeline.errors import BadInput

if TYPE_CHECKING:
    from batchinference.spec.read import FileOptions

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The value that Hive writes in a path for null."""


@dataclass(frozen=True)
class PathColumns:
    """The columns to add: `path` itself, and one for each `key=value` part of the path."""

    include_path: bool = False
    keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: FileOptions, paths: list[str]) -> PathColumns:
        """Return the columns for files at these paths.

        Raises BadInput if the `key=value` parts are missing or differ between the paths, or if a
        key is named `path` and `path` is added too."""
        keys: tuple[str, ...] = ()
        if options.partitioning and paths:
            keys = tuple(_parts(paths[0]))
            if not keys:
                raise BadInput(
                    f"read.options.partitioning: {paths[0]} has no part such as 'class=cat/'"
                )
            for path in paths:
                if tuple(_parts(path)) != keys:
                    raise BadInput(
                        f"read.options.partitioning: {path} does not have the parts "
                        f"{', '.join(keys)}, as {paths[0]} has"
                    )
        columns = cls(options.include_paths, keys)
        if columns.include_path and "path" in keys:
            raise BadInput(_clash("path", paths[0], "include_paths"))
        return columns

    @property
    def names(self) -> list[str]:
        return [*self.keys, *(["path"] if self.include_path else [])]

    def check(self, names: list[str], uri: str) -> None:
        """Raise BadInput if a file has a column with the name of one of these columns."""
        for name in self.names:
            if name in names:
                option = "partitioning" if name in self.keys else "include_paths"
                raise BadInput(_clash(name, uri, option))

    def added_to(self, table: pa.Table, uri: str) -> pa.Table:
        """Return the rows of a file with these columns added. Raises BadInput as `check` does."""
        self.check(table.column_names, uri)
        values = {**_parts(uri), "path": uri}
        for name in self.names:
            value = pa.scalar(values[name], pa.string())
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        return table

    def added_to_each(self, table: pa.Table, uris: list[str]) -> pa.Table:
        """Return the table with these columns added, for files that are one row each."""
        values = [{**_parts(uri), "path": uri} for uri in uris]
        for name in self.names:
            column = pa.array([one[name] for one in values], pa.string())
            table = table.append_column(name, column)
        return table


def _parts(path: str) -> dict[str, str | None]:
    """Return the `key=value` parts of the directories in a path; None for a null value."""
    pairs = (part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
    return {unquote(key): None if value == _NULL else unquote(value) for key, value in pairs}


def _clash(name: str, uri: str, option: str) -> str:
    return f"{uri} has a column '{name}' of its own. Remove read.options.{option}"
