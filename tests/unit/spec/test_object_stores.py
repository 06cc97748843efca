"""The storage settings of read and write."""

from __future__ import annotations

import pytest

from batchinference.spec.storage import FROM_ENVIRONMENT
from support.documents.minimal import document
from support.documents.refusals import accepted_at

SIDES = ["read", "write"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "endpoint",
    [
        *("https://minio.example", "http://minio.storage:9000"),
        *("http://127.0.0.1:10000/dev", "https://account.blob.core.windows.net/"),
    ],
)
def test_storage_of_read_and_write_are_independent(side: str, endpoint: str) -> None:
    given = {"endpoint": endpoint, "region": "eu-west-1", "anonymous": True}
    spec = accepted_at(f"spec.{side}.storage", given, document()).spec
    assert getattr(spec, side).storage.model_dump() == given
    (other,) = set(SIDES) - {side}
    assert getattr(spec, other).storage == FROM_ENVIRONMENT
