"""Addresses of databases, servers and Iceberg catalogs, which must not contain passwords."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field

from batchinference.spec.address_credentials import (
    HIDDEN,
    OF_DATABASES,
    OF_PROPERTIES,
    refuse,
    rule,
)
from batchinference.spec.base import ENV_NAME, HTTP_URL, SpecModel, invalid
from batchinference.spec.uri_fields import check_host

DATABASE_URL = r"^[A-Za-z][A-Za-z0-9_]*(\+[A-Za-z0-9_]+)?://"
TABLE_NAME = r"^[^\x00-\x20.]+(\.[^\x00-\x20.]+)*$"
_FROM_ENVIRONMENT = (
    "pyiceberg reads it from the environment variable PYICEBERG_CATALOG__NAME__PROPERTY, which "
    "cluster.env fills from a Secret"
)
_CLASS = re.compile(r"(^|[.-])impl$", re.IGNORECASE)
"""Matches names of properties that make pyiceberg import a class, such as py-io-impl."""
_LOCAL_PREFIXES = ("/", ".", "~", "file:")
_SQLITE = re.compile(r"^(sqlite(?:\+\w+)?:///)([^?]+)")


def sqlite_file(url: str) -> str | None:
    """Return the path of the file of a SQLite database; None for any other database."""
    match = _SQLITE.match(url)
    return match.group(2) if match and match.group(2) != ":memory:" else None


def map_sqlite_file(url: str, change: Callable[[str], str]) -> str:
    """Return a URL with `change` applied to the path of its SQLite file, if there is one."""
    match = _SQLITE.match(url)
    if match is None or sqlite_file(url) is None:
        return url
    return match.group(1) + change(match.group(2)) + url[match.end() :]


DatabaseUrl = Annotated[
    str,
    Field(pattern=DATABASE_URL, max_length=1024),
    *refuse(
        OF_DATABASES,
        "a password does not belong in the file. Store the whole address in a Secret, pass it in "
        "cluster.env and name the variable in urlEnv",
    ),
    AfterValidator(check_host),
]


def _check_http(url: object) -> object:
    if not (isinstance(url, str) and re.match(HTTP_URL, url)):
        message = "expected the address of a server: http://HOST:PORT or https://HOST:PORT"
        raise invalid(message, HIDDEN)
    return url


HttpUrl = Annotated[DatabaseUrl, BeforeValidator(_check_http)]
TableName = Annotated[str, Field(pattern=TABLE_NAME, max_length=256)]


class Addressed(SpecModel):
    """Base class of spec sections with an address, in `url` or in an environment variable."""

    url: str | None = None
    url_env: Annotated[str, Field(pattern=ENV_NAME, max_length=128)] | None = None
    """Instead of `url`: the environment variable with the URL. On a cluster, `cluster.env` can set
    it from a Secret."""

    def _check(self) -> None:
        super()._check()
        if (self.url is None) == (self.url_env is None):
            raise invalid("give exactly one of url and urlEnv")


class Database(Addressed):
    """A database that SQLAlchemy can access."""

    url: DatabaseUrl | None = None
    """The SQLAlchemy URL of the database, without a password, such as sqlite:////data/x.db or
    postgresql+psycopg://user@host/name."""

    @property
    def file_location(self) -> dict[str, str]:
        """Return the path of a SQLite file as `{"url": PATH}`; empty for any other database."""
        file = sqlite_file(self.url or "")
        return {"url": file} if file else {}

    def map_file(self, change: Callable[[str], str]) -> Self:
        """Return a copy with `change` applied to the path of a SQLite file, if there is one."""
        url = self.url and map_sqlite_file(self.url, change)
        return self.model_copy(update={"url": url})


class Server(Addressed):
    """A server with an HTTP API."""

    url: HttpUrl | None = None
    """The URL of the server, without a password, such as http://search.example:9200."""


def names_class(name: str) -> bool:
    """Return whether a property of this name makes pyiceberg import a class."""
    return bool(_CLASS.search(name))


def _check_property_name(name: str) -> str:
    if names_class(name):
        raise invalid(
            "a property that names a class to import could run any code. Use the catalogs and file "
            "systems of pyiceberg, or name the class in pyiceberg's own configuration"
        )
    if re.search(OF_PROPERTIES, name):
        raise invalid(f"a secret does not belong in the file: {_FROM_ENVIRONMENT}", HIDDEN)
    return name


def _check_property(value: str) -> str:
    if re.search(OF_DATABASES, value):
        fix = f"Remove the property: {_FROM_ENVIRONMENT}"
        raise invalid(f"a password does not belong in the file. {fix}", HIDDEN)
    return value


PropertyName = Annotated[
    str, Field(min_length=1, max_length=128), AfterValidator(_check_property_name)
]
PropertyValue = Annotated[
    str, Field(max_length=1024), AfterValidator(_check_property), AfterValidator(check_host)
]
_NO_SECRETS = rule(
    f"self.all(name, !name.matches('{OF_PROPERTIES}') && !self[name].matches('{OF_DATABASES}'))"
)


class Catalog(SpecModel):
    """An Iceberg catalog: the arguments of pyiceberg's `load_catalog`. pyiceberg reads absent
    settings from its configuration file and environment variables."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = "default"
    """The name of the catalog in pyiceberg's configuration."""
    properties: Annotated[dict[PropertyName, PropertyValue], Field(max_length=32), _NO_SECRETS] = {}
    """The properties of the catalog, such as type, uri and warehouse. Secrets must be in the
    environment. Properties that name a class to import, such as py-io-impl, are rejected."""


class CatalogTable(SpecModel):
    """An Iceberg table in a catalog."""

    table: TableName
    """The table, with its namespace before a dot. A job that writes creates a missing table."""
    catalog: Catalog = Catalog()
    """The catalog of the table."""

    @property
    def catalog_files(self) -> dict[str, str]:
        """Return the local paths in the properties of the catalog, by field."""
        return {f"catalog.properties.{name}": path for name, path in self._paths.items()}

    def map_catalog(self, change: Callable[[str], str]) -> Self:
        """Return a copy with `change` applied to the local paths of the catalog."""
        properties = self.catalog.properties
        changed = {
            name: map_sqlite_file(properties[name], change)
            if sqlite_file(properties[name])
            else change(path)
            for name, path in self._paths.items()
        }
        catalog = self.catalog.model_copy(update={"properties": properties | changed})
        return self.model_copy(update={"catalog": catalog})

    @property
    def _paths(self) -> dict[str, str]:
        """Return the local paths in `uri` and `warehouse`, including SQLite files, by property."""
        properties = {name: self.catalog.properties.get(name, "") for name in ("uri", "warehouse")}
        paths = {
            name: sqlite_file(value) or (value if value.startswith(_LOCAL_PREFIXES) else "")
            for name, value in properties.items()
        }
        return {name: path for name, path in paths.items() if path}

    def _check(self) -> None:
        super()._check()
        if "." not in self.table:
            raise invalid("table: the namespace is missing. Write namespace.table")
        if self.catalog.properties.get("warehouse", "").startswith("az://"):
            raise invalid(
                "catalog.properties.warehouse: Iceberg does not know az://. Write "
                "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
            )
