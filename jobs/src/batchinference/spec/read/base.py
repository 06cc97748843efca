"""The fields and options that formats have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import OptionsModel, SpecModel, rules
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

Paths = Annotated[list[Uri], Field(min_length=1, max_length=256)]
Blocks = Annotated[int, Field(ge=1, le=10_000)]
Limit = Annotated[int, Field(ge=1, le=10**15)]
RowBytes = Annotated[int, Field(ge=1024, le=1 << 40)]

_NO_SHUFFLE = "'shuffle_seed' needs 'shuffle: files'"


class ReadOptions(OptionsModel):
    """Options of every source."""

    override_num_blocks: Blocks | None = None
    """Approximate number of blocks of the input. The default depends on its size."""


class FileOptions(ReadOptions):
    """Options of formats that are files."""

    model_config = ConfigDict(
        json_schema_extra=rules(("!has(self.shuffle_seed) || has(self.shuffle)", _NO_SHUFFLE))
    )

    include_paths: bool = False
    """Add a column `path` with the address of the file of each row."""
    file_extensions: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=16)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """The extensions, without the dot, of the files to read from directories. The default depends
    on the format."""
    ignore_missing_paths: bool = False
    """Skip paths that do not exist. At least one path must exist."""
    partitioning: Literal["hive"] | None = None
    """`hive` adds a text column for each directory of the form `name=value`, such as
    `class=cat/`."""
    limit: Limit | None = None
    """Maximum number of rows to read: the first rows in the order of the paths. Files that do not
    store their number of rows are read twice up to this row. The limit is part of the work: a run
    without it needs another output, or the write mode overwrite."""
    shuffle: Literal["files"] | None = None
    """Read the files in random order."""
    shuffle_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The seed of the order. Without it, each run has another order."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shuffle_seed is not None and self.shuffle is None:
            raise PydanticCustomError("seed", _NO_SHUFFLE, {})
        return self


class RowOptions(FileOptions):
    """Options of formats whose reader holds a whole row in memory before it decodes it."""

    USUAL_ROW_BYTES: ClassVar[int] = 256 << 20

    max_row_bytes: RowBytes | None = None
    """Maximum size of a row in bytes after decompression and decoding. A larger row fails. For
    numpy, the limit applies to all arrays of a file. The default is 256 MiB, for audio and numpy 1
    GiB and for tfrecords 64 MiB."""

    @property
    def row_bytes(self) -> int:
        """`max_row_bytes`, or the default of the format."""
        return self.max_row_bytes or self.USUAL_ROW_BYTES


class ReadModel(SpecModel):
    """The source of the rows."""

    PLACES: ClassVar[tuple[str, ...]] = ()
    """Fields that hold an address, or a list of them."""

    @property
    def include_paths(self) -> bool:
        """Whether rows have a column with the path of their file."""
        return False

    @property
    def places(self) -> dict[str, str]:
        """The addresses to read from, by their fields."""
        found: dict[str, str] = {}
        for field in self.PLACES:
            value = getattr(self, field)
            if isinstance(value, list):
                found |= {f"{field}[{index}]": uri for index, uri in enumerate(value)}
            elif value is not None:
                found[field] = value
        return found

    def moved(self, move: Callable[[str], str]) -> Self:
        """Return a copy with other addresses."""
        changed = {}
        for field in self.PLACES:
            value = getattr(self, field)
            changed[field] = list(map(move, value)) if isinstance(value, list) else move(value)
        return self.model_copy(update=changed)


class ReadFiles(ReadModel):
    """Files of one format."""

    PLACES = ("paths",)

    paths: Paths
    """Files, directories (with their subdirectories) and globs: local, s3://, gs:// or az://. A
    path that is listed twice is read twice. A file that matches several different paths is read
    once."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the paths."""

    @property
    def include_paths(self) -> bool:
        options: FileOptions = getattr(self, "options")  # noqa: B009 - each format has its own
        return options.include_paths
