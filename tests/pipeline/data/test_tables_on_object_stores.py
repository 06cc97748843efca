"""Tables on an S3 server, and on simulated Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import lance
import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.storage.object_stores import iceberg_properties
from batchinference.spec.read import Read
from batchinference.spec.storage import Storage
from support.inputs.read_files import Outcome
from support.jobs.table_writes import in_order, run_job, table_of
from support.servers.clouds import ACCOUNT_KEY, Cloud, served
from support.servers.s3 import S3Server

ROWS = [{"id": 0, "text": "a"}, {"id": 1, "text": None}, {"id": 2, "text": "b"}]
Write = dict[str, Any]


@pytest.fixture(scope="module")
def clouds() -> Iterator[dict[str, Cloud]]:
    with served("google") as google, served("azure") as azure:
        yield {"gs": google, "az": azure}


def iceberg(bucket: str, directory: Path) -> Write:
    properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db"}
    properties["warehouse"] = f"{bucket}/w"
    return {"table": "ns.rows", "catalog": {"properties": properties}}


def write_and_append(write: Write, directory: Path) -> None:
    """Write two rows, append a third one, and run the append again, which must do nothing."""
    assert run_job(directory / "in", write, [pa.Table.from_pylist(ROWS[:2])])
    more = {**write, "mode": "append"}
    assert run_job(directory / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert not run_job(directory / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert in_order(table_of(write).first_rows(9)) == ROWS


@pytest.mark.parametrize("format_", ["lance", "delta", "iceberg"])
def test_rows_on_s3_are_read_back_and_appended_once(
    format_: str, tmp_path: Path, s3: S3Server, bucket: str
) -> None:
    write: Write = {"format": format_, "path": f"s3://{bucket}/out"}
    write |= iceberg(f"s3://{bucket}", tmp_path) if format_ == "iceberg" else {}
    write_and_append(write, tmp_path)
    assert in_order(read_by_library(write, s3)) == ROWS


def read_by_library(write: Write, s3: S3Server) -> list[dict[str, Any]]:
    """Read with the format's own library and its own options."""
    options = {**s3.environment, "AWS_ENDPOINT": s3.endpoint, "allow_http": "true"}
    match write["format"]:
        case "lance":
            dataset = lance.dataset(write["path"], storage_options=options)
            return list(dataset.to_table().to_pylist())
        case "delta":
            options["AWS_ALLOW_HTTP"] = "true"
            table = deltalake.DeltaTable(write["path"], storage_options=options)
            return list(table.to_pyarrow_table().to_pylist())
    # without a region, pyiceberg asks Amazon for the region of the bucket
    s3_properties = {"s3.endpoint": s3.endpoint, "s3.region": "us-east-1"}
    properties = {**write["catalog"]["properties"], **s3_properties}
    catalog = load_catalog("default", **properties)
    return list(catalog.load_table("ns.rows").scan().to_arrow().to_pylist())


@pytest.mark.parametrize("format_", ["lance", "delta"])
@pytest.mark.parametrize(
    ("scheme", "anonymous"), [("gs", True), ("az", True), ("az", False)], ids=str
)
def test_rows_on_clouds_are_read_back_and_appended_once(
    format_: str,
    scheme: str,
    anonymous: bool,
    clouds: dict[str, Cloud],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not anonymous:
        monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    storage = {"endpoint": clouds[scheme].endpoint, "anonymous": anonymous}
    path = f"{scheme}://{format_}-{anonymous}".lower() + "/out"
    write_and_append({"format": format_, "path": path, "storage": storage}, tmp_path)
    source = TypeAdapter(Read).validate_python(
        {"format": format_, "path": path, "storage": storage}
    )
    batches = [batch for task in open_input(source).read_tasks(1) for batch in task()]
    assert in_order(Outcome(batches).good) == ROWS


def test_iceberg_reaches_its_warehouse_on_google(
    clouds: dict[str, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TOKEN": "t", "TOKEN_EXPIRES_AT": "32503680000000"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__GCS__OAUTH2__{name}", value)
    # pyiceberg reads the environment at import, and another test may have imported it
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    storage = {"endpoint": clouds["gs"].endpoint, "anonymous": True}
    write = {"format": "iceberg", "path": "gs://iceberg/out", "storage": storage}
    write |= iceberg("gs://iceberg", tmp_path)
    assert run_job(tmp_path / "in", write, [pa.Table.from_pylist(ROWS)])
    assert in_order(table_of(write).first_rows(9)) == ROWS
    assert any(name.startswith("iceberg/w/") for name in clouds["gs"].objects)


def test_iceberg_properties_name_the_endpoint() -> None:
    s3 = {"s3.endpoint": "https://store", "s3.region": "here"}
    for place, expected in (
        ("s3://lake/w", s3),
        ("./out", s3),
        ("gs://lake/w", {"gcs.service.host": "https://store"}),
        ("abfss://lake@account.dfs.core.windows.net/w", {}),
        ("az://lake/out", {}),
    ):
        found = iceberg_properties(place, Storage(endpoint="https://store", region="here"))
        assert found == expected, place
