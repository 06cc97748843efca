"""Tables on an S3 s3, reached by environment variables only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import lance
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from batchinference.pipeline.stores import object_store
from support.jobs.table_writes import in_order, run_job, table_of
from support.servers.s3 import S3Server

ROWS = [{"id": 0, "text": "a"}, {"id": 1, "text": None}, {"id": 2, "text": "b"}]


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    object_store.cache_clear()
    name = tmp_path.name.replace("_", "-")
    s3.client().create_bucket(Bucket=name)
    return name


def fields(format_: str, bucket: str, place: Path) -> dict[str, Any]:
    write = {"format": format_, "path": f"s3://{bucket}/out"}
    if format_ != "iceberg":
        return write
    uri = f"sqlite:///{place}/catalog.db"
    properties = {"type": "sql", "uri": uri, "warehouse": f"s3://{bucket}/w"}
    return {**write, "table": "ns.rows", "catalog": {"properties": properties}}


@pytest.mark.parametrize("format_", ["lance", "delta", "iceberg"])
def test_rows_are_read_back_and_appended_once(
    format_: str, bucket: str, tmp_path: Path, s3: S3Server
) -> None:
    write = fields(format_, bucket, tmp_path)
    assert run_job(tmp_path / "in", write, [pa.Table.from_pylist(ROWS[:2])])
    more = {**write, "mode": "append"}
    assert run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert not run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert in_order(read(format_, write, s3)) == ROWS
    assert in_order(table_of(write).first_rows(9)) == ROWS


def read(format_: str, write: dict[str, Any], s3: S3Server) -> list[dict[str, Any]]:
    """Read with the format's own library and its own options."""
    options = {**s3.environment, "AWS_ENDPOINT": s3.endpoint, "allow_http": "true"}
    match format_:
        case "lance":
            dataset = lance.dataset(write["path"], storage_options=options)
            return list(dataset.to_table().to_pylist())
        case "delta":
            options["AWS_ALLOW_HTTP"] = "true"
            table = deltalake.DeltaTable(write["path"], storage_options=options)
            return list(table.to_pyarrow_table().to_pylist())
    properties = {**write["catalog"]["properties"], "s3.endpoint": s3.endpoint}
    catalog = load_catalog("default", **properties)
    return list(catalog.load_table("ns.rows").scan().to_arrow().to_pylist())
