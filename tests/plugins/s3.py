"""An S3 server, which starts with the first test that needs it, and a bucket for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.servers.s3 import S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yield one server for all tests. Each test uses its own bucket."""
    from support.servers.s3 import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a new bucket, and let this process use the server."""
    name = tmp_path.name.replace("_", "-").lower().strip("-")
    s3.client().create_bucket(Bucket=name)
    for variable, value in s3.environment.items():
        monkeypatch.setenv(variable, value)
    return name
