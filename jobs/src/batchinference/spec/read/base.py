"""What the formats have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import ColumnName, OptionsModel, SpecModel
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

Paths = Annotated[list[Uri], Field(min_length=1, max_length=256)]
Columns = Annotated[list[ColumnName], Field(min_length=1, max_length=256)]


class FileOptions(OptionsModel):
    """Options of every format that is made of files."""

    include_paths: bool = False
    """Add a column `path` with the address of the file that the row came from."""
    file_extensions: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=16)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """Endings, without the dot, that a file in a directory must have to be read.
    Each format has its usual ones."""


class ReadModel(SpecModel):
    paths: Paths
    """Files, directories (read with their subdirectories) and globs; local, s3://, gs:// or
    az://."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store that the paths name is reached."""
