"""Sources that are not files: databases, Hugging Face data sets, Lance data sets, inline rows."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from batchinference.spec.arguments import JsonObject, check_json_size
from batchinference.spec.base import SQL_NAME, Columns, Unique, invalid
from batchinference.spec.databases import Database
from batchinference.spec.read.base import Limit, ReadModel, ReadOptions
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import Uri

Items = Annotated[
    list[Annotated[JsonObject, Field(min_length=1)]],
    Field(min_length=1, max_length=1000),
    AfterValidator(check_json_size),
]
SqlName = Annotated[str, Field(pattern=SQL_NAME, max_length=128)]


class SqlOptions(ReadOptions):
    shard_keys: Annotated[list[SqlName], Field(min_length=1, max_length=8), Unique] | None = None
    """Columns whose hash divides the rows into `overrideNumBlocks` concurrent queries. The database
    must support MOD, ABS and the hash function."""
    shard_hash_fn: SqlName = "MD5"
    """The database function that computes a number from the shard keys."""

    @model_validator(mode="before")
    @classmethod
    def _check_no_limit(cls, options: Any) -> Any:
        if isinstance(options, dict) and "limit" in options:
            raise invalid(
                "'limit' belongs in the query, in the SQL dialect of the database: LIMIT 1000, or "
                "FETCH FIRST 1000 ROWS ONLY"
            )
        return options

    def _check(self) -> None:
        if (self.shard_keys is None) != (self.override_num_blocks in (None, 1)):
            raise invalid("'shardKeys' and an 'overrideNumBlocks' above 1 need each other")


class ReadSql(ReadModel, Database):
    """The rows of a query."""

    format: Literal["sql"]
    query: Annotated[str, Field(min_length=1, max_length=16384)]
    """A SELECT statement."""
    options: SqlOptions = SqlOptions()

    @property
    def locations(self) -> dict[str, str]:
        return self.file_location

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return self.map_file(change)


class HuggingfaceOptions(ReadOptions):
    config: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The configuration, for a data set with several configurations."""
    split: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The split to read, such as `train`. With `streaming: false`, also a slice such as
    `train[:1000]`. Optional if a saved folder has only one split."""
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The branch, tag or commit of a data set of the Hub. A commit makes the job reproducible."""
    limit: Limit | None = None
    """Maximum number of rows to read, from the beginning. With `streaming: true`, one task reads
    all rows. If you change the limit, use another output path or `write.mode: overwrite`."""
    streaming: bool = True
    """Whether rows are read over the network when they are needed. If false, each machine first
    downloads the data set."""


class ReadHuggingface(ReadModel):
    """A data set of the Hugging Face Hub, or one that the library `datasets` saved."""

    format: Literal["huggingface"]
    name: Annotated[str, Field(min_length=1, max_length=1024)]
    """The id on the Hub, or the path of a folder. A path begins with `/`, `.`, `~` or `file://`."""
    options: HuggingfaceOptions = HuggingfaceOptions()

    @property
    def is_path(self) -> bool:
        """Return whether `name` is the path of a folder, and not an id of the Hub."""
        return self.name.startswith(("/", ".", "~", "file://"))

    @property
    def locations(self) -> dict[str, str]:
        return {"name": self.name} if self.is_path else {}

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return self.model_copy(update={"name": change(self.name)}) if self.is_path else self


class LanceOptions(ReadOptions):
    columns: Columns | None = None
    """The columns to read. Other columns are not fetched. All columns by default."""
    filter: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """An SQL condition for the rows to read, evaluated by Lance."""
    limit: Limit | None = None
    """Maximum number of rows to read: the first rows that match the filter. One task reads them. If
    you change the limit, use another output path or `write.mode: overwrite`."""
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """The version to read. The latest by default."""


class ReadLance(ReadModel):
    """A Lance data set."""

    LOCATION_FIELDS = ("path",)

    format: Literal["lance"]
    path: Uri
    """The directory: local, s3://, gs:// or az://."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the path."""
    options: LanceOptions = LanceOptions()

    @property
    def own_columns(self) -> list[str] | None:
        return self.options.columns


class ItemsOptions(ReadOptions):
    limit: Limit | None = None
    """Maximum number of rows to read, from the beginning. If you change the limit, use another
    output path or `write.mode: overwrite`."""


class ReadItems(ReadModel):
    """Rows in the job file."""

    format: Literal["items"]
    items: Items
    """The rows, each as `column: value`. Missing values are null. The maximum size is 65536 bytes
    as JSON. Store larger inputs in a file."""
    options: ItemsOptions = ItemsOptions()

    @property
    def own_columns(self) -> list[str] | None:
        return list(dict.fromkeys(name for item in self.items for name in item))
