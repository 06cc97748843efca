"""Tables as targets: what names them, and what stays out of the file."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.write import Write
from support.documents.refusals import refused, short, writing

HIDDEN = "hunter2"


def written(format_: str, **fields: Any) -> Write:
    return parse(writing(format_, **fields)).spec.write


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{HIDDEN}@db/x",
        f"postgresql://me@db/x?password={HIDDEN}",
        f"mysql+pymysql://me@db/x?ssl_token={HIDDEN}",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    message = refused(writing("sql", table="rows", url=url))
    assert "a password does not belong into the file" in message
    assert "urlEnv" in message
    assert HIDDEN not in message


@pytest.mark.parametrize("name", ["token", "credential", "s3.secret-access-key", "adls.sas-token"])
def test_a_secret_of_a_catalog_is_refused_and_not_shown(name: str) -> None:
    catalog = {"properties": {"uri": "http://catalog", name: HIDDEN}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    assert "PYICEBERG_CATALOG__NAME__PROPERTY" in message
    assert HIDDEN not in message


def test_a_password_in_an_address_of_a_catalog_is_refused_and_not_shown() -> None:
    catalog = {"properties": {"type": "sql", "uri": f"postgresql://me:{HIDDEN}@db/x"}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    assert "a password does not belong into the file" in message
    assert HIDDEN not in message


@pytest.mark.parametrize(
    ("format_", "fields", "message"),
    [
        ("sql", {"table": "rows"}, "give exactly one of url and urlEnv"),
        ("sql", {"table": "rows", "url": "sqlite:///x", "urlEnv": "X"}, "give exactly one of url"),
        ("sql", {"url": "sqlite:///x"}, ".table: required, but missing"),
        ("sql", {"table": "my rows", "url": "sqlite:///x"}, ".table: expected the name of a table"),
        ("sql", {"table": "rows", "url": "x.db"}, ".url: expected an address as SQLAlchemy has it"),
        ("iceberg", {"table": "rows"}, "table: Iceberg has namespaces: write namespace.table"),
        (
            "iceberg",
            {"table": "ns.rows", "catalog": {"properties": {"warehouse": "az://lake/tables"}}},
            "warehouse: Iceberg does not know az://: write abfss://CONTAINER@ACCOUNT",
        ),
        ("lance", {"partitionBy": ["class"]}, ".partitionBy: unknown field"),
        ("sql", {"table": "t", "url": "sqlite:///x", "rowsPerFile": 1}, ".rowsPerFile: unknown"),
    ],
    ids=short,
)
def test_invalid_table_name_is_refused(format_: str, fields: dict[str, Any], message: str) -> None:
    found = refused(writing(format_, **fields))
    assert found.startswith("spec.write")
    assert message in found


CATALOG = {"properties": {"type": "sql", "uri": "sqlite:///c.db", "warehouse": "./w"}}


@pytest.mark.parametrize(
    ("format_", "fields", "places"),
    [
        ("sql", {"table": "t", "url": "sqlite:///x.db"}, {"url": "x.db"}),
        ("sql", {"table": "t", "url": "sqlite:////data/x.db"}, {"url": "/data/x.db"}),
        ("sql", {"table": "t", "url": "postgresql://db/x"}, {}),
        ("sql", {"table": "t", "urlEnv": "X"}, {}),
        ("iceberg", {"table": "n.t", "catalog": CATALOG},
         {"catalog.properties.uri": "c.db", "catalog.properties.warehouse": "./w"}),
        ("iceberg", {"table": "n.t", "catalog": {"properties": {
            "uri": "http://catalog", "warehouse": "prod"}}}, {}),
        ("iceberg", {"table": "n.t", "catalog": {"properties": {"warehouse": "s3://b/w"}}}, {}),
    ],
    ids=short,
)  # fmt: skip
def test_local_paths_of_a_table_are_found(
    format_: str, fields: dict[str, Any], places: dict[str, str]
) -> None:
    assert written(format_, **fields).places == {"path": "s3://out/", **places}


def test_local_files_can_be_moved() -> None:
    def move(path: str) -> str:
        return f"/jobs/{path}"

    sql: Any = written("sql", table="t", url="sqlite:///x.db").moved(move)
    assert sql.url == "sqlite:////jobs/x.db"
    iceberg: Any = written("iceberg", table="n.t", catalog=CATALOG).moved(move)
    moved = {"type": "sql", "uri": "sqlite:////jobs/c.db", "warehouse": "/jobs/./w"}
    assert iceberg.catalog.properties == moved
