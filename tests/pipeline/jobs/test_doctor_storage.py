"""`batchinference doctor FILE`: whether the output of a job can be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugins.messages import Messages
from support.documents.minimal import document
from support.program import run_program
from support.servers.s3 import S3Server

Finding = dict[str, str]


def findings(directory: Path, path: str, **spec: Any) -> dict[str, Finding]:
    """Return the findings of `doctor` for a job that writes to a path, by their check."""
    file = directory / "job.yaml"
    write = {"format": "parquet", "path": path}
    file.write_text(yaml.safe_dump(document(write=write, **spec)))
    done = run_program("doctor", str(file), "-o", "json")
    assert done.exit_code in (0, 1), done.output
    return {each["check"]: each for each in json.loads(done.stdout)}


@pytest.fixture
def store(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def test_bucket_that_can_be_written_is_left_as_it_was(store: S3Server, tmp_path: Path) -> None:
    store.client().create_bucket(Bucket="doctor")
    store.put("doctor", {"deep/out/part": b"1", "other": b"2"})
    before = store.objects("doctor")
    result = findings(tmp_path, "s3://doctor/deep/out/", errors={"path": "s3://doctor/errors"})
    for field, location in (("write.path", "deep/out/"), ("errors.path", "errors")):
        assert result[field]["result"] == "ok"
        message = f"'s3://doctor/{location}': files can be written, listed, read and deleted"
        assert result[field]["found"] == message
    assert store.objects("doctor") == before


def test_refused_write_is_reported(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.client().create_bucket(Bucket="refused")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-key-of-the-tests")
    result = findings(tmp_path, "s3://refused/out")["write.path"]
    assert result["result"] == "failed"
    assert result["found"].startswith("'s3://refused/out': no file can be written (")
    assert "rights of the credentials" in result["advice"]


def test_missing_bucket_is_reported(store: S3Server, tmp_path: Path) -> None:
    result = findings(tmp_path, "s3://no-such-bucket/out")["write.path"]
    assert result["result"] == "failed"
    assert "no file can be written" in result["found"]


def test_local_directory_is_not_created(tmp_path: Path, messages: Messages) -> None:
    result = findings(tmp_path, "./deep/out")["write.path"]
    assert (result["result"], (tmp_path / "deep").exists()) == ("ok", False)
    (tmp_path / "file").write_text("1")
    result = findings(tmp_path, "./file/out")["write.path"]
    assert result["result"] == "failed"
    messages.check(result["found"])
