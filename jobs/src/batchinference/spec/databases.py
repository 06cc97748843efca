"""Databases and catalogs, whose passwords stay out of the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.credentials import names_credential
from batchinference.spec.base import ENV_NAME, SpecModel, rules
from batchinference.spec.uris import HIDDEN

DATABASE_URL = r"^[A-Za-z][A-Za-z0-9_]*(\+[A-Za-z0-9_]+)?://"
TABLE_NAME = r"^[^\x00-\x20.]+(\.[^\x00-\x20.]+)*$"
_SECRET = re.compile(
    r"secret|token|passw|pwd|credential|authorization|access-key|account-key|sas", re.IGNORECASE
)
_ONE_ADDRESS = "give exactly one of url and urlEnv"
_CLASS = re.compile(r"(^|[.-])impl$", re.IGNORECASE)
"""The properties by which pyiceberg imports a class, such as py-io-impl."""
_PASSWORD = re.compile("://[^/@]*:[^@]*@")
"""A user with a password, in which SQLAlchemy takes a slash for what it is."""
_SQLITE = re.compile(r"^(sqlite(?:\+\w+)?:///)([^?]+)")


def sqlite_file(url: str) -> str | None:
    """The path of the file that is a SQLite database; None for another one."""
    match = _SQLITE.match(url)
    return match.group(2) if match and match.group(2) != ":memory:" else None


def with_sqlite_moved(url: str, move: Callable[[str], str]) -> str:
    """The address with the file of a SQLite database elsewhere; that of another one as it is."""
    match = _SQLITE.match(url)
    if match is None or sqlite_file(url) is None:
        return url
    return match.group(1) + move(match.group(2)) + url[match.end() :]


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    names = [name for name, _ in parse_qsl(parts.query)]
    if _PASSWORD.search(url) or any(
        _SECRET.search(name) or names_credential(name) for name in names
    ):
        raise PydanticCustomError(
            HIDDEN,
            "a password does not belong into the file: keep the whole address in a Secret, hand it "
            "over in cluster.env and name the variable in urlEnv",
            {},
        )
    return url


DatabaseUrl = Annotated[
    str, Field(pattern=DATABASE_URL, max_length=1024), AfterValidator(_without_password)
]
TableName = Annotated[str, Field(pattern=TABLE_NAME, max_length=256)]


class Database(SpecModel):
    """A database that SQLAlchemy can reach."""

    model_config = ConfigDict(
        json_schema_extra=rules(("has(self.url) != has(self.urlEnv)", _ONE_ADDRESS))
    )

    url: DatabaseUrl | None = None
    """The address of the database, as SQLAlchemy has it, without a password: sqlite:////data/x.db,
    or postgresql+psycopg://user@host/name."""
    url_env: Annotated[str, Field(pattern=ENV_NAME, max_length=128)] | None = None
    """Instead: the environment variable that holds the address. On a cluster `cluster.env` fills
    it from a Secret."""

    @property
    def file(self) -> dict[str, str]:
        """The file of a SQLite database, by its field; nothing for another one."""
        file = sqlite_file(self.url or "")
        return {"url": file} if file else {}

    def with_file_moved(self, move: Callable[[str], str]) -> Self:
        url = self.url and with_sqlite_moved(self.url, move)
        return self.model_copy(update={"url": url})

    @model_validator(mode="after")
    def _one_address(self) -> Database:
        if (self.url is None) == (self.url_env is None):
            raise PydanticCustomError("database_url", _ONE_ADDRESS, {})
        return self


def names_class(name: str) -> bool:
    """Return whether a property of this name makes pyiceberg import a class."""
    return bool(_CLASS.search(name))


def _property(name: str) -> str:
    if names_class(name):
        raise PydanticCustomError(
            "catalog_class",
            "a property that names a class to import could run any code. Use the catalogs and file "
            "systems of pyiceberg, or name the class in pyiceberg's own configuration",
            {},
        )
    if _SECRET.search(name):
        raise PydanticCustomError(
            HIDDEN,
            "a secret does not belong into the file: pyiceberg takes it from the environment "
            "variable PYICEBERG_CATALOG__NAME__PROPERTY, which cluster.env fills from a Secret",
            {},
        )
    return name


PropertyName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_property)]


class Catalog(SpecModel):
    """An Iceberg catalog, as pyiceberg's `load_catalog` takes it. What is left out comes from
    pyiceberg's configuration file and environment variables."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = "default"
    """Its name in pyiceberg's configuration."""
    properties: Annotated[
        dict[
            PropertyName, Annotated[str, Field(max_length=1024), AfterValidator(_without_password)]
        ],
        Field(max_length=32),
    ] = {}
    """Its properties, such as type, uri and warehouse; secrets only through the environment.
    Properties that name a class to import, such as py-io-impl, are refused."""
