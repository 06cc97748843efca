"""Sources that are not files: databases, data sets of the Hugging Face Hub, Lance, inline rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Values, small
from batchinference.spec.base import SQL_NAME, Columns, EachOnce, rules
from batchinference.spec.databases import Database
from batchinference.spec.read.base import Limit, ReadModel, ReadOptions
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

Items = Annotated[
    list[Annotated[Values, Field(min_length=1)]],
    Field(min_length=1, max_length=1000),
    AfterValidator(small),
]
SqlName = Annotated[str, Field(pattern=SQL_NAME, max_length=128)]

_SHARDS = "'shard_keys' and an 'override_num_blocks' above 1 need each other"


class SqlOptions(ReadOptions):
    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.shard_keys) == (has(self.override_num_blocks) && "
                "self.override_num_blocks > 1)",
                _SHARDS,
            )
        )
    )

    shard_keys: Annotated[list[SqlName], Field(min_length=1, max_length=8), EachOnce] | None = None
    """Columns by whose values the rows are divided into `override_num_blocks` queries that run
    side by side. The database must know MOD, ABS and the hash function."""
    shard_hash_fn: SqlName = "MD5"
    """The database's function that turns the shard keys into a number."""

    @model_validator(mode="before")
    @classmethod
    def _without_limit(cls, given: Any) -> Any:
        if isinstance(given, dict) and "limit" in given:
            raise PydanticCustomError(
                "sql_limit",
                "'limit' belongs into the query, in the words of the database: LIMIT 1000, or "
                "FETCH FIRST 1000 ROWS ONLY",
                {},
            )
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.shard_keys is None) != (self.override_num_blocks in (None, 1)):
            raise PydanticCustomError("shards", _SHARDS, {})
        return self


class ReadSql(ReadModel, Database):
    """The rows of a query."""

    format: Literal["sql"]
    """The kind of source."""
    query: Annotated[str, Field(min_length=1, max_length=16384)]
    """A SELECT statement."""
    options: SqlOptions = SqlOptions()
    """Options of the source."""

    @property
    def places(self) -> dict[str, str]:
        return self.file

    def moved(self, move: Callable[[str], str]) -> Self:
        return self.with_file_moved(move)


class HuggingfaceOptions(ReadOptions):
    config: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The configuration of a data set that has several."""
    split: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The split to read, such as `train`, and where nothing is streamed also `train[:1000]`. It may
    be left out where a folder that was saved has only one."""
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The branch, tag or commit of a data set of the Hub. A commit keeps a job repeatable."""
    limit: Limit | None = None
    """Read so many rows and no more: the first. When it is streamed, one task reads them."""
    streaming: bool = True
    """Read over the network as rows are needed. False: each machine downloads the data set
    first."""


class ReadHuggingface(ReadModel):
    """A data set of the Hugging Face Hub, or one that `datasets` has saved."""

    format: Literal["huggingface"]
    """The kind of source."""
    name: Annotated[str, Field(min_length=1, max_length=1024)]
    """Its id on the Hub, or the path of a folder: one that begins with `/` or `.`."""
    options: HuggingfaceOptions = HuggingfaceOptions()
    """Options of the source."""

    @property
    def is_path(self) -> bool:
        return self.name.startswith(("/", ".", "~", "file://"))

    @property
    def places(self) -> dict[str, str]:
        return {"name": self.name} if self.is_path else {}

    def moved(self, move: Callable[[str], str]) -> Self:
        return self.model_copy(update={"name": move(self.name)}) if self.is_path else self


class LanceOptions(ReadOptions):
    columns: Columns | None = None
    """The columns to read; the others are never fetched."""
    filter: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """An SQL condition that the rows to read fulfil, evaluated by Lance."""
    limit: Limit | None = None
    """Read so many rows and no more: the first that the filter lets through. One task does it."""
    version: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """The version to read; the latest by default."""


class ReadLance(ReadModel):
    """A Lance data set."""

    PLACES = ("path",)

    format: Literal["lance"]
    """The kind of source."""
    path: Uri
    """Its directory; local, s3://, gs:// or az://."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store that the path names is reached."""
    options: LanceOptions = LanceOptions()
    """Options of the source."""


class ItemsOptions(ReadOptions):
    limit: Limit | None = None
    """Read so many rows and no more: the first."""


class ReadItems(ReadModel):
    """Rows that are written in the job's file."""

    format: Literal["items"]
    """The kind of source."""
    items: Items
    """The rows, each as `column: value`. A row without a value for a column has null there. At most
    65536 bytes as JSON; larger inputs belong into a file."""
    options: ItemsOptions = ItemsOptions()
    """Options of the source."""
