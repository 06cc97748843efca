"""Local files that name a table, in a job for a cluster."""

from __future__ import annotations

import pytest

from batchinference.rendering.paths import check_paths
from support.documents.minimal import Document
from support.documents.parsed import spec_of

SHARED = {"volumes": [{"name": "data", "mountPath": "/data",
                       "persistentVolumeClaim": {"claimName": "c"}}]}  # fmt: skip


def problems(write: Document) -> list[str]:
    spec = spec_of(write={"path": "s3://out/", **write}, cluster=SHARED)
    return [problem.path for problem in check_paths(spec)]


def sql(url: str) -> Document:
    return {"format": "sql", "table": "rows", "url": url}


def iceberg(**properties: str) -> Document:
    return {"format": "iceberg", "table": "ns.rows", "catalog": {"properties": properties}}


@pytest.mark.parametrize(
    ("write", "fields"),
    [
        (sql("sqlite:////tmp/x.db"), ["spec.write.url"]),
        (sql("sqlite:///x.db"), ["spec.write.url"]),
        (iceberg(uri="sqlite:////tmp/c.db"), ["spec.write.catalog.properties.uri"]),
        (iceberg(warehouse="/tmp/w"), ["spec.write.catalog.properties.warehouse"]),
    ],
)
def test_table_path_in_a_pod_is_refused(write: Document, fields: list[str]) -> None:
    assert problems(write) == fields


@pytest.mark.parametrize(
    "write",
    [
        sql("sqlite:////data/x.db"),
        sql("postgresql://db/x"),
        iceberg(uri="http://catalog", warehouse="prod"),
        iceberg(uri="sqlite:////data/c.db", warehouse="/data/w"),
    ],
)
def test_shared_table_path_is_accepted(write: Document) -> None:
    assert problems(write) == []
