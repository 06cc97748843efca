"""The base classes of input formats and of their options."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from batchinference.spec.base import ColumnName, SpecModel, invalid
from batchinference.spec.column_types import ColumnTypes
from batchinference.spec.quantities import Size
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import InputUri

Paths = Annotated[list[InputUri], Field(min_length=1, max_length=256)]
Blocks = Annotated[int, Field(ge=1, le=10_000)]
Limit = Annotated[int, Field(ge=1, le=10**15)]
RowBytes = Annotated[int, Field(ge=1024, le=1 << 40), *Size]


class ReadOptions(SpecModel):
    """Options of all sources."""

    override_num_blocks: Blocks | None = None
    """Approximate number of blocks of the input. The default depends on its size."""


class FileOptions(ReadOptions):
    """Options of formats that are files."""

    TYPES_OF_COLUMNS: ClassVar[bool] = False
    """Whether `types` can name columns of files, and not only partition values."""

    include_paths: bool = False
    """Add a column `path` with the path or URI of the file of each row."""
    path_column: ColumnName | None = None
    """Add the path or URI of the file of each row as a column of this name, instead of `path`."""
    file_extensions: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=16)]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """The extensions of the files to read from directories, without the dot. By default, the
    extensions of the format, and unknown extensions if the content has the format."""
    ignore_missing_paths: bool = False
    """Skip paths that do not exist. Without `allowEmpty`, at least one path must have files."""
    partitioning: Literal["hive"] | None = None
    """`hive` adds a column for each directory of the form `name=value`, such as `class=cat/`. The
    type of the column is inferred from all values: `int64`, `date` or text."""
    types: ColumnTypes | None = None
    """The types of columns: partition values of all formats, columns of CSV, JSON and Parquet
    files, and JSON members of webdataset. Other types are inferred from the first rows of many
    files, or defined by the files. `json` is JSON as text, for values of several shapes. A value
    that does not fit its declared type makes its row a failed row."""
    limit: Limit | None = None
    """Maximum number of rows to read: the first rows in the order of the paths. If the files do not
    store their number of rows, they are read twice up to the last of these rows. If you change the
    limit, use another output path or `write.mode: overwrite`."""
    shuffle: Literal["files"] | None = None
    """Read the files in random order."""
    shuffle_seed: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """The seed of the random order. Without a seed, the order is different in each run."""

    def _check(self) -> None:
        if self.shuffle_seed is not None and self.shuffle is None:
            raise invalid("'shuffleSeed' needs 'shuffle: files'")
        if self.types and not self.TYPES_OF_COLUMNS and self.partitioning is None:
            raise invalid(
                "types: these files define the types of their columns. Remove it, or set "
                "partitioning: hive for the types of partition values"
            )

    @property
    def path_name(self) -> str | None:
        """Return the column with the path of the file of each row; None if there is none."""
        return self.path_column or ("path" if self.include_paths else None)


class TypedOptions(FileOptions):
    """Options of formats whose columns can have declared types."""

    TYPES_OF_COLUMNS = True


class TableOptions(TypedOptions):
    """Options of formats whose files are tables."""

    duplicate_columns: Literal["fail", "rename"] = "fail"
    """What happens if a file has several columns of the same name. `fail`: the job is refused.
    `rename`: the second column `v` becomes `v_1`, and so on. The case of names is ignored."""


class RowOptions(FileOptions):
    """Options of formats whose reader limits the size of a row."""

    DEFAULT_ROW_BYTES: ClassVar[int] = 256 << 20

    max_row_bytes: RowBytes | None = None
    """Maximum size of a row after decompression and decoding, such as 64Mi. A larger row is a
    failed row. For numpy, the limit applies to all arrays of a file together. The default is
    256Mi, and for audio and numpy 1Gi."""

    @property
    def row_bytes(self) -> int:
        """Return `maxRowBytes`, or the default of the format."""
        return self.max_row_bytes or self.DEFAULT_ROW_BYTES


class ReadModel(SpecModel):
    """The source of the rows."""

    LOCATION_FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the fields with paths or URIs."""
    COLUMNS: ClassVar[tuple[str, ...]] = ()
    """The columns of the source, if they are always the same."""
    HAS_TEXTS: ClassVar[bool] = True
    """Whether the rows may have a column of texts."""
    TASK_ROWS: ClassVar[int | None] = None
    """Rows per read task, if tasks can share a file; None if a task reads whole files."""
    INFLATION: ClassVar[int] = 4
    """How many times larger rows are in memory than in files."""

    format: str
    """The kind of source."""
    options: ReadOptions
    """Options of the source."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Put the field `options` last, so that documentation lists it last."""
        cls.__pydantic_fields__["options"] = cls.__pydantic_fields__.pop("options")
        cls.model_rebuild(force=True)

    @property
    def own_columns(self) -> list[str] | None:
        """Return the columns of the source itself, without paths and partition values; None if they
        are unknown until the source is opened."""
        return list(self.COLUMNS) or None

    @property
    def columns(self) -> list[str] | None:
        """Return the columns of the rows; None if they are unknown until the source is opened."""
        return self.own_columns

    def row_bytes(self, size: int, rows: int) -> int:
        """Return the approximate bytes of a row in memory, by the size and the rows of its
        files."""
        return max(64, self.INFLATION * size // max(1, rows))

    @property
    def path_name(self) -> str | None:
        """Return the column with the path of the file of each row; None if there is none."""
        return None

    def wrong_option(self, columns: list[str]) -> tuple[str, str] | None:
        """Return the field that is probably wrong and the message about it, or None. The source has
        these columns, but steps read none of them."""
        return None

    @property
    def replaces_rows(self) -> str | None:
        """Return the field that makes the job replace or remove rows of the output, or None."""
        return None

    @property
    def locations(self) -> dict[str, str]:
        """Return the paths and URIs of the input, by field."""
        locations: dict[str, str] = {}
        for field in self.LOCATION_FIELDS:
            value = getattr(self, field)
            if isinstance(value, list):
                locations |= {f"{field}[{index}]": uri for index, uri in enumerate(value)}
            elif value is not None:
                locations[field] = value
        return locations

    def map_locations(self, change: Callable[[str], str]) -> Self:
        """Return a copy with `change` applied to all paths and URIs."""
        changed = {}
        for field in self.LOCATION_FIELDS:
            value = getattr(self, field)
            changed[field] = list(map(change, value)) if isinstance(value, list) else change(value)
        return self.model_copy(update=changed)

    @property
    def has_limit(self) -> bool:
        """Return whether the format has the option `limit`."""
        return "limit" in type(self.options).model_fields

    def limited(self, rows: int) -> Self:
        """Return a copy that reads at most `rows` rows; unchanged without the option `limit`."""
        if not self.has_limit:
            return self
        limit = min(rows, getattr(self.options, "limit", None) or rows)
        return self.model_copy(update={"options": self.options.model_copy(update={"limit": limit})})


class ReadFiles(ReadModel):
    """Files of one format."""

    LOCATION_FIELDS = ("paths",)
    EXTENSIONS: ClassVar[tuple[str, ...]] = ()
    """The extensions of the files to read from directories; empty for all files."""
    PACKAGED: ClassVar[tuple[str, ...]] = ()
    """Further extensions, of files that only an optional package can decode."""
    AMBIGUOUS: ClassVar[tuple[str, ...]] = ()
    """Extensions of other formats that files of this format may also have."""
    READS_TABLES: ClassVar[bool] = False
    """Whether the data files of a table, such as a Delta table, are files of the format."""

    format: str
    """The format of the files."""
    options: FileOptions
    """Options of the format."""
    paths: Paths
    """Files, directories (with their subdirectories) and globs: local, s3://, gs:// or az://. A
    path that is listed twice is read twice. A file that matches different paths is read once."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the paths."""
    allow_empty: bool = False
    """Whether there may be no files to read. The output is then complete and has no rows.
    Directories and globs may be empty, but a missing local path also needs `ignoreMissingPaths`."""
    on_change: Literal["fail", "recompute"] = "fail"
    """What happens if a file has changed since its rows were written. The field applies to an
    unfinished job that resumes, and to `write.mode: append`. `fail`: the job fails before it writes
    anything, or when it has read a file that changed meanwhile. `recompute`: the next run replaces
    the rows of the old content. Not for tables."""
    on_delete: Literal["keep", "removeRows"] = "keep"
    """What happens to the output rows of a file that is gone. The field applies in the same cases
    as `onChange`. `keep`: the rows stay, and the job fails if it has not read all rows of the file.
    `removeRows`: the rows and their error records are removed. Not for tables."""

    @property
    def replaces_rows(self) -> str | None:
        if self.on_change == "recompute":
            return "onChange"
        return "onDelete" if self.on_delete == "removeRows" else None

    def limited(self, rows: int) -> Self:
        """Return a copy that reads at most `rows` rows, and does not replace or remove rows."""
        no_changes = {"on_change": "fail", "on_delete": "keep"}
        return super().limited(rows).model_copy(update=no_changes)

    @property
    def path_name(self) -> str | None:
        return self.options.path_name

    @property
    def columns(self) -> list[str] | None:
        if self.own_columns is None or self.options.partitioning:
            return None
        return [*self.own_columns, *filter(None, [self.path_name])]
