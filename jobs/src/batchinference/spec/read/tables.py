"""Input formats that are tables with versions. A job reads the data files of one version."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from batchinference.spec.base import Columns
from batchinference.spec.databases import CatalogTable
from batchinference.spec.expression import Condition
from batchinference.spec.read.base import Limit, ReadModel, ReadOptions
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import Uri

MAX_SNAPSHOT = 9_223_372_036_854_775_000
"""Maximum id of a snapshot. The API server compares it as a float, which is below 2**63."""


class VersionedOptions(ReadOptions):
    """Options of tables with versions."""

    CHANGE_COLUMNS: ClassVar[tuple[str, ...]] = ()
    """The columns that `changes: include` adds."""

    columns: Columns | None = None
    """The columns to read. Other columns are not fetched. All columns by default."""
    filter: Condition | None = None
    """An expression, as in a `filter` step. Files and row groups are not read if partition values
    or statistics show that no row matches. Other rows that do not match are filtered rows."""
    limit: Limit | None = None
    """Maximum number of rows to read, before `filter`: the first rows in the order of the data
    files. If you change the limit, use another output path or `write.mode: overwrite`."""
    changes: Literal["inserts", "include"] = "inserts"
    """Which changes `write.mode: append` reads in later runs. `inserts`: rows that were inserted.
    `include`: all changes of the change data feed, with columns for the kind of change. Rows of the
    first run are inserts."""

    @property
    def added_columns(self) -> tuple[str, ...]:
        """Return the columns that `changes` adds to those of the table."""
        return self.CHANGE_COLUMNS if self.changes == "include" else ()


class ReadVersioned(ReadModel):
    """A table with versions."""

    TASK_ROWS = 1000

    format: str
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the data files."""
    options: VersionedOptions
    """Options of the table."""

    @property
    def own_columns(self) -> list[str] | None:
        chosen = self.options.columns
        return None if chosen is None else [*chosen, *self.options.added_columns]

    @property
    def is_pinned(self) -> bool:
        """Return whether the spec names the version to read."""
        return False


class DeltaOptions(VersionedOptions):
    CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")

    version: Annotated[int, Field(ge=0, le=2**53)] | None = None
    """The version to read. The latest by default. If set, `write.mode: append` adds no rows."""


class ReadDelta(ReadVersioned):
    """A Delta Lake table."""

    LOCATION_FIELDS = ("path",)

    format: Literal["delta"]
    path: Uri
    """The directory: local, s3://, gs:// or az://."""
    options: DeltaOptions = DeltaOptions()

    @property
    def is_pinned(self) -> bool:
        return self.options.version is not None


class IcebergOptions(VersionedOptions):
    CHANGE_COLUMNS = (
        *("_change_type", "_change_ordinal"),
        *("_commit_snapshot_id", "_commit_timestamp"),
    )

    snapshot: Annotated[int, Field(ge=1, le=MAX_SNAPSHOT)] | None = None
    """The snapshot to read. The latest by default. If set, `write.mode: append` adds no rows."""


class ReadIceberg(ReadVersioned, CatalogTable):
    """An Iceberg table in a catalog. Its data files must be Parquet files."""

    format: Literal["iceberg"]
    options: IcebergOptions = IcebergOptions()

    @property
    def is_pinned(self) -> bool:
        return self.options.snapshot is not None

    @property
    def locations(self) -> dict[str, str]:
        return self.catalog_files

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return self.map_catalog(change)
