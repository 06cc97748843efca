"""Tables on simulated Google Cloud Storage and Azure Blob Storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.utils.config import Config

from batchinference.pipeline.stores import object_store
from batchinference.pipeline.table_sources import open_table
from batchinference.pipeline.tables.stores import iceberg_properties
from batchinference.spec.read import ReadLance
from batchinference.spec.storage import Storage
from support.inputs.read_files import Outcome
from support.jobs.table_writes import in_order, run_job, table_of
from support.servers.clouds import ACCOUNT_KEY, Cloud, served

ROWS = [{"id": 0, "text": "a"}, {"id": 1, "text": None}, {"id": 2, "text": "b"}]


@pytest.fixture(scope="module")
def clouds() -> Iterator[dict[str, Cloud]]:
    with served("google") as google, served("azure") as azure:
        yield {"gs": google, "az": azure}


@pytest.fixture(autouse=True)
def fresh_file_systems() -> None:
    object_store.cache_clear()


def storage(scheme: str, clouds: dict[str, Cloud], *, anonymous: bool) -> dict[str, Any]:
    endpoint = clouds[scheme].endpoint
    return {"endpoint": endpoint, "anonymous": anonymous}


@pytest.mark.parametrize("format_", ["lance", "delta"])
@pytest.mark.parametrize(
    ("scheme", "anonymous"), [("gs", True), ("az", True), ("az", False)], ids=str
)
def test_rows_are_read_back_and_appended_once(
    format_: str,
    scheme: str,
    anonymous: bool,
    clouds: dict[str, Cloud],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not anonymous:
        monkeypatch.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    reached = storage(scheme, clouds, anonymous=anonymous)
    path = f"{scheme}://{format_}-{anonymous}".lower() + "/out"
    write = {"format": format_, "path": path, "storage": reached}
    assert run_job(tmp_path / "in", write, [pa.Table.from_pylist(ROWS[:2])])
    more = {**write, "mode": "append"}
    assert run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert not run_job(tmp_path / "more", more, [pa.Table.from_pylist(ROWS[2:])])
    assert in_order(table_of(write).first_rows(9)) == ROWS
    if format_ == "lance":
        source = ReadLance.model_validate({"format": "lance", "path": path, "storage": reached})
        tasks = open_table(source).read_tasks(1)
        assert in_order(Outcome([table for task in tasks for table in task()]).good) == ROWS


def test_iceberg_reaches_its_warehouse(
    clouds: dict[str, Cloud], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TOKEN": "t", "TOKEN_EXPIRES_AT": "32503680000000"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__DEFAULT__GCS__OAUTH2__{name}", value)
    # pyiceberg reads the environment at import, and another test may have imported it
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = {"properties": {"type": "sql", "uri": uri, "warehouse": "gs://iceberg/w"}}
    reached = storage("gs", clouds, anonymous=True)
    write = {"format": "iceberg", "path": "gs://iceberg/out", "storage": reached}
    write |= {"table": "ns.rows", "catalog": catalog}
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
