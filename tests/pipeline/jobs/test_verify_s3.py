"""Verification of input and output on S3, with a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.documents.minimal import Document
from support.jobs.on_ray import job_document
from support.outputs.builders import every_tenth, make_output
from support.outputs.verify_command import invoke
from support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

LINES = "".join(f"text {n}\n" for n in range(50)).encode()


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Create a bucket with texts below in/, and let this process use the server."""
    name = tmp_path.name.replace("_", "-").lower().strip("-")
    s3.client().create_bucket(Bucket=name)
    s3.put(name, {f"in/{n}.txt": LINES for n in range(4)})
    for variable, value in s3.environment.items():
        monkeypatch.setenv(variable, value)
    return name


def job(bucket: str, **spec: Any) -> Document:
    source, output = f"s3://{bucket}/in", f"s3://{bucket}/out"
    return job_document("s3", source, output, errors={"maxRows": 100}, **spec)


def test_endpoint_of_an_output_is_not_reached_unless_trusted(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = {"endpoint": s3.endpoint, "region": "us-east-1"}
    source, output = f"s3://{bucket}/in", tmp_path / "out"
    make_output(job_document("down", source, output, read={"storage": storage}))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    refused = invoke(output)
    assert refused.exit_code == 2
    assert f"'{output}' names the endpoint {s3.endpoint} for its input" in refused.stderr
    assert invoke(output, "--trust-output").exit_code == 0
    stored = output / "_batchinference/spec.json"
    spec = json.loads(stored.read_text())
    spec["read"]["storage"]["anonymous"] = True  # the server must not be reached either
    stored.write_text(json.dumps(spec))
    refused = invoke(output)
    assert (refused.exit_code, "names the endpoint" in refused.stderr) == (2, True)


def test_no_secret_is_printed(s3: S3Server, bucket: str) -> None:
    make_output(job(bucket), every_tenth, complete=False)
    for output in (f"s3://{bucket}/out", f"s3://{bucket}/nowhere", "s3://no-such-bucket/out"):
        done = invoke(output)
        assert done.exit_code == (3 if output.endswith("out") and bucket in output else 2)
        assert not {ACCESS_KEY, SECRET_KEY} & set((done.stdout + done.stderr).split())
        assert SECRET_KEY not in done.output + done.stderr
