"""spec.write: file formats, and tables with their catalogs and databases."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.write import Write
from support.documents.refusals import short, writing

CATALOG = {"properties": {"type": "sql", "uri": "sqlite:///c.db", "warehouse": "./w"}}


def written(format_: str, **fields: Any) -> Write:
    return parse(writing(format_, **fields)).spec.write


@pytest.mark.parametrize(
    ("format_", "fields", "locations"),
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
    format_: str, fields: dict[str, Any], locations: dict[str, str]
) -> None:
    assert written(format_, **fields).locations == {"path": "s3://out/", **locations}


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


def test_connection_of_a_store_is_known() -> None:
    assert "http://q:6333" in written("qdrant", **VECTORS).connection
    hidden = {name: value for name, value in DOCUMENTS.items() if name != "url"}
    assert "OPENSEARCH" in written("opensearch", **hidden, urlEnv="OPENSEARCH").connection
