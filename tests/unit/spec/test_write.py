"""spec.write: file formats, and tables with their catalogs and databases."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.write import Write
from support.documents.refusals import refused, short, writing

COMPRESSIONS = {
    "parquet": ["snappy", "zstd", "gzip", "lz4", "none"],
    "json": ["gzip", "none"],
    "csv": ["gzip", "none"],
}
SECRET = "hunter2"
CATALOG = {"properties": {"type": "sql", "uri": "sqlite:///c.db", "warehouse": "./w"}}


def written(format_: str, **fields: Any) -> Write:
    return parse(writing(format_, **fields)).spec.write


@pytest.mark.parametrize("format_", COMPRESSIONS)
def test_compression_of_a_format_is_accepted(format_: str) -> None:
    for compression in COMPRESSIONS[format_]:
        write = written(format_, compression=compression)
        assert (write.format, write.compression) == (format_, compression)
    default = {"parquet": "snappy", "json": "none", "csv": "none"}[format_]
    assert written(format_).compression == default


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_write_mode_is_accepted(mode: str) -> None:
    assert written("json", mode=mode).mode == mode


@pytest.mark.parametrize(
    ("format_", "fields", "message"),
    [
        ("json", {"compression": "zstd"}, "compression: 'zstd' is not one of gzip, none"),
        ("json", {"path": ""}, "path: expected at least 1 character, got ''"),
        ("json", {"path": None}, "path: expected a text, got null"),
        ("json", {"path": "ftp://out"},
         "path: the scheme 'ftp://' is not supported"),
        ("json", {"paths": ["out"]}, "paths: unknown field; did you mean 'path'?"),
        ("csv", {"delimiter": "1"}, "delimiter: expected a tab, or punctuation"),
    ],
    ids=short,
)  # fmt: skip
def test_write_is_refused(format_: str, fields: dict[str, Any], message: str) -> None:
    assert refused(writing(format_, **fields)).startswith(f"spec.write.{message}")


@pytest.mark.parametrize("format_", ["parquet", "json", "csv", "webdataset"])
@pytest.mark.parametrize("column", ["_day", ".day"])
def test_partition_column_that_readers_skip_is_refused(format_: str, column: str) -> None:
    message = refused(writing(format_, partitionBy=["class", column]))
    assert message == (
        "spec.write: partitionBy: readers leave out directories whose names begin with "
        f"'{column[0]}', as those of column '{column}' would: rename it first, with a step "
        "renameColumns"
    )


def test_row_number_with_the_name_of_a_column_is_refused() -> None:
    assert refused(writing("csv", rowNumber="n", columns=["n"])) == (
        "spec.write: rowNumber: it adds column 'n', which columns names: choose another name"
    )


@pytest.mark.parametrize(("format_", "column"), [("delta", "_day"), ("parquet", "day_")])
def test_partition_column_is_accepted(format_: str, column: str) -> None:
    assert written(format_, partitionBy=[column]).partition_by == [column]


# --- tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db/x",
        f"postgresql://me@db/x?password={SECRET}",
        f"mysql+pymysql://me@db/x?ssl_token={SECRET}",
    ],
)
def test_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    message = refused(writing("sql", table="rows", url=url))
    assert "a password does not belong in the file" in message
    assert "urlEnv" in message
    assert SECRET not in message


@pytest.mark.parametrize("name", ["token", "credential", "s3.secret-access-key", "adls.sas-token"])
def test_catalog_secret_is_refused_and_not_shown(name: str) -> None:
    catalog = {"properties": {"uri": "http://catalog", name: SECRET}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    assert "PYICEBERG_CATALOG__NAME__PROPERTY" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    "name",
    ["py-catalog-impl", "py-io-impl", "s3.retry-strategy-impl", "write.py-location-provider.impl"],
)
def test_iceberg_property_that_names_a_class_is_refused(name: str) -> None:
    catalog = {"properties": {"uri": "http://catalog", name: "os.system"}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    assert message.startswith("spec.write.catalog.properties")
    assert "a property that names a class to import could run any code" in message


def test_catalog_password_in_a_uri_is_refused_and_not_shown() -> None:
    catalog = {"properties": {"type": "sql", "uri": f"postgresql://me:{SECRET}@db/x"}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    assert "a password does not belong in the file" in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("format_", "fields", "message"),
    [
        ("sql", {"table": "rows"}, "give exactly one of url and urlEnv"),
        ("sql", {"table": "rows", "url": "sqlite:///x", "urlEnv": "X"}, "give exactly one of url"),
        ("sql", {"url": "sqlite:///x"}, ".table: required, but missing"),
        ("sql", {"table": "my rows", "url": "sqlite:///x"}, ".table: expected the name of a table"),
        ("sql", {"table": "rows", "url": "x.db"}, ".url: expected a SQLAlchemy URL"),
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
def test_table_is_refused(format_: str, fields: dict[str, Any], message: str) -> None:
    found = refused(writing(format_, **fields))
    assert found.startswith("spec.write")
    assert message in found


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
def test_table_local_paths_are_found(
    format_: str, fields: dict[str, Any], places: dict[str, str]
) -> None:
    assert written(format_, **fields).locations == {"path": "s3://out/", **places}


def test_table_local_paths_can_be_moved() -> None:
    def move(path: str) -> str:
        return f"/jobs/{path}"

    sql: Any = written("sql", table="t", url="sqlite:///x.db").map_locations(move)
    assert sql.url == "sqlite:////jobs/x.db"
    iceberg: Any = written("iceberg", table="n.t", catalog=CATALOG).map_locations(move)
    moved = {"type": "sql", "uri": "sqlite:////jobs/c.db", "warehouse": "/jobs/./w"}
    assert iceberg.catalog.properties == moved
