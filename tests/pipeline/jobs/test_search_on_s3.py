"""The search command and the step `nearest` search outputs on S3."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from click.testing import Result

from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import load_step
from batchinference.spec.steps import Step
from support.outputs.builders import embedded, finished_output, vectors
from support.program import run_program
from support.servers.s3 import S3Server


def search(output: str, *arguments: str) -> Result:
    return run_program("search", output, *arguments, "-o", "json")


def test_command_searches_an_output_on_s3(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="searched")
    files = [embedded(vectors(20, 8, seed), n=range(seed * 20, seed * 20 + 20)) for seed in (0, 1)]
    out = finished_output("s3://searched/deep/out", *files)
    for number in (0, 33):
        (hit,) = json.loads(search(out, "--row", f"n={number}", "-k", "1").stdout)
        found = {"rank": 1, "similarity": pytest.approx(1), "row": number, "columns": {"n": number}}
        assert hit == found
    result = search("s3://searched/deep", "--row", "0")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'s3://searched/deep' is not the output of a BatchInference" in result.stderr
    assert (
        "'s3://no-such-bucket/x' does not exist"
        in search("s3://no-such-bucket/x", "--row", "0").stderr
    )


def test_step_reads_from_the_store_that_it_names(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.client().create_bucket(Bucket="stored")
    out = finished_output("s3://stored/out", embedded(vectors(20, 8), n=range(20)))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    nearest = {
        **{"path": out, "storage": {"endpoint": s3.endpoint}, "k": 1},
        **{"column": "embedding", "output": "matches"},
    }
    step = Step.model_validate({"name": "near", "nearest": nearest})
    table = load_step(step, Device())(embedded(vectors(20, 8)))
    assert isinstance(table, pa.Table)
    assert [row[0]["n"] for row in table.column("matches").to_pylist()] == list(range(20))
