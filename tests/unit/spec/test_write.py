"""spec.write: file formats, and tables with their catalogs and databases."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.write import Write
from plugins.messages import Messages
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
    ("format_", "fields"),
    [
        ("json", {"compression": "zstd"}),
        ("json", {"path": ""}),
        ("json", {"path": None}),
        ("json", {"path": "ftp://out"}),
        ("json", {"paths": ["out"]}),
        ("csv", {"delimiter": "1"}),
    ],
    ids=short,
)
def test_write_is_refused(format_: str, fields: dict[str, Any], messages: Messages) -> None:
    messages.check(refused(writing(format_, **fields)))


@pytest.mark.parametrize("format_", ["parquet", "json", "csv", "webdataset"])
@pytest.mark.parametrize("column", ["_day", ".day"])
def test_partition_column_that_readers_skip_is_refused(
    format_: str, column: str, messages: Messages
) -> None:
    messages.check(refused(writing(format_, partitionBy=["class", column])))


def test_row_number_with_the_name_of_a_column_is_refused(messages: Messages) -> None:
    messages.check(refused(writing("csv", rowNumber="n", columns=["n"])))


@pytest.mark.parametrize(("format_", "column"), [("delta", "_day"), ("parquet", "day_")])
def test_partition_column_is_accepted(format_: str, column: str) -> None:
    assert written(format_, partitionBy=[column]).partition_by == [column]


@pytest.mark.parametrize(
    ("format_", "fields"),
    [
        ("delta", {"mode": "merge"}),
        ("delta", {"key": ["id"]}),
        ("delta", {"mode": "merge", "key": []}),
        ("delta", {"mode": "merge", "key": ["id", "id"]}),
        ("delta", {"mode": "merge", "key": ["id"], "columns": ["text"]}),
        ("parquet", {"mode": "merge"}),
        ("lance", {"mode": "merge"}),
        ("lance", {"mode": "addColumn"}),
        ("lance", {"mode": "addColumn", "columns": ["vector"]}),
    ],
    ids=short,
)
def test_mode_that_needs_other_fields_is_refused(
    format_: str, fields: dict[str, Any], messages: Messages
) -> None:
    messages.check(refused(writing(format_, **fields)))


# --- tables -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db/x",
        f"postgresql://me@db/x?password={SECRET}",
        f"mysql+pymysql://me@db/x?ssl_token={SECRET}",
    ],
)
def test_password_in_a_url_is_refused_and_not_shown(url: str, messages: Messages) -> None:
    message = refused(writing("sql", table="rows", url=url))
    messages.check(message)
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
def test_iceberg_property_that_names_a_class_is_refused(name: str, messages: Messages) -> None:
    catalog = {"properties": {"uri": "http://catalog", name: "os.system"}}
    messages.check(refused(writing("iceberg", table="ns.rows", catalog=catalog)))


def test_catalog_password_in_a_uri_is_refused_and_not_shown(messages: Messages) -> None:
    catalog = {"properties": {"type": "sql", "uri": f"postgresql://me:{SECRET}@db/x"}}
    message = refused(writing("iceberg", table="ns.rows", catalog=catalog))
    messages.check(message)
    assert SECRET not in message


@pytest.mark.parametrize(
    ("format_", "fields"),
    [
        ("sql", {"table": "rows"}),
        ("sql", {"table": "rows", "url": "sqlite:///x", "urlEnv": "X"}),
        ("sql", {"url": "sqlite:///x"}),
        ("sql", {"table": "my rows", "url": "sqlite:///x"}),
        ("sql", {"table": "rows", "url": "x.db"}),
        ("iceberg", {"table": "rows"}),
        (
            "iceberg",
            {"table": "ns.rows", "catalog": {"properties": {"warehouse": "az://lake/tables"}}},
        ),
        ("lance", {"partitionBy": ["class"]}),
        ("sql", {"table": "t", "url": "sqlite:///x", "rowsPerFile": 1}),
    ],
    ids=short,
)
def test_table_is_refused(format_: str, fields: dict[str, Any], messages: Messages) -> None:
    messages.check(refused(writing(format_, **fields)))


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


VECTORS = {"collection": "rows", "url": "http://q:6333", "key": ["id"], "vectorColumn": "e"}
DOCUMENTS = {"index": "rows", "url": "http://o:9200", "key": ["id"]}


@pytest.mark.parametrize(
    ("format_", "given", "fields"),
    [
        ("qdrant", VECTORS, {"collection": "a/b"}),
        ("qdrant", VECTORS, {"url": "localhost:6333"}),
        ("qdrant", VECTORS, {"url": f"https://me:{SECRET}@q"}),
        ("qdrant", VECTORS, {"urlEnv": "QDRANT"}),
        ("qdrant", VECTORS, {"apiKeyEnv": "my key"}),
        ("qdrant", VECTORS, {"mode": "append"}),
        ("qdrant", VECTORS, {"key": []}),
        ("qdrant", VECTORS, {"columns": ["id", "text"]}),
        ("qdrant", VECTORS, {"columns": ["e"]}),
        ("qdrant", VECTORS, {"distance": "l2"}),
        ("qdrant", VECTORS, {"dimensions": 0}),
        ("opensearch", DOCUMENTS, {"index": "Rows"}),
        ("opensearch", DOCUMENTS, {"dimensions": 2}),
        ("opensearch", DOCUMENTS, {"url": "sqlite:///x"}),
        ("sql", {"table": "t", "url": "sqlite:///x"}, {"dimensions": 2}),
    ],
    ids=short,
)
def test_store_is_refused(
    format_: str, given: dict[str, Any], fields: dict[str, Any], messages: Messages
) -> None:
    message = refused(writing(format_, **{**given, **fields}))
    assert SECRET not in message
    messages.check(message)


def test_connection_of_a_store_is_known() -> None:
    assert "http://q:6333" in written("qdrant", **VECTORS).connection
    hidden = {name: value for name, value in DOCUMENTS.items() if name != "url"}
    assert "OPENSEARCH" in written("opensearch", **hidden, urlEnv="OPENSEARCH").connection
