"""Tables on an S3 server, reached by the environment alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import lance
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from batchinference.pipeline.stores import object_store
from support.s3 import S3Server, s3_server
from support.tables import in_order, run_job, table_of

ROWS = [{"id": 0, "text": "a"}, {"id": 1, "text": None}, {"id": 2, "text": "b"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    object_store.cache_clear()
    name = tmp_path.name.replace("_", "-")
    server.client().create_bucket(Bucket=name)
    return name


def fields(format_: str, bucket: str, place: Path) -> dict[str, Any]:
    write = {"format": format_, "path": f"s3://{bucket}/out"}
    if format_ != "iceberg":
        return write
    uri = f"sqlite:///{place}/catalog.db"
    properties = {"type": "sql", "uri": uri, "warehouse": f"s3://{bucket}/w"}
    return {**write, "table": "ns.rows", "catalog": {"properties": properties}}


@pytest.mark.parametrize("format_", ["lance", "delta", "iceberg"])
def test_rows_come_back_and_are_added_to_once(
    format_: str, bucket: str, tmp_path: Path, server: S3Server
) -> None:
    write = fields(format_, bucket, tmp_path)
    assert run_job(tmp_path / "in", write, [pa.Table.from_pylist(ROWS[:2])])
    more = {**write, "mode": "append"}
    assert run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert not run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert in_order(read(format_, write, server)) == ROWS
    assert in_order(table_of(write).first_rows(9)) == ROWS


def read(format_: str, write: dict[str, Any], server: S3Server) -> list[dict[str, Any]]:
    """By the format's own library, told of the server in its own words."""
    options = {**server.environment, "AWS_ENDPOINT": server.endpoint, "allow_http": "true"}
    match format_:
        case "lance":
            dataset = lance.dataset(write["path"], storage_options=options)
            return list(dataset.to_table().to_pylist())
        case "delta":
            options["AWS_ALLOW_HTTP"] = "true"
            table = deltalake.DeltaTable(write["path"], storage_options=options)
            return list(table.to_pyarrow_table().to_pylist())
    properties = {**write["catalog"]["properties"], "s3.endpoint": server.endpoint}
    catalog = load_catalog("default", **properties)
    return list(catalog.load_table("ns.rows").scan().to_arrow().to_pylist())
