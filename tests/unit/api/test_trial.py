"""A trial over the first rows of a job, with an output next to that of the job, and a restart."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.api.job_for_run import trial, with_new_output
from batchinference.pipeline.errors import BadInput
from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.job import BatchInferenceSpec
from plugins.messages import Messages
from support.documents.minimal import document

SQL = {"format": "sql", "query": "SELECT 1", "url": "sqlite:////data/x.db"}
TABLE = {"format": "lance", "path": "s3://out/rows"}
STORE = {"format": "opensearch", "path": "/out", "index": "a", "url": "http://b", "key": ["id"]}


def job(path: str = "s3://out/result/", limit: int | None = None, **spec: Any) -> BatchInference:
    options = {"limit": limit} if limit else {}
    read = {"format": "text", "paths": ["s3://in/"], "options": options}
    write = {"format": "parquet", "path": path, "mode": "append"}
    return parse(document(**({"read": read, "write": write} | spec)))


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("s3://out/result/", "s3://out/result-limit-3"),
        ("gs://out/deep/result", "gs://out/deep/result-limit-3"),
        ("/data/out/", "/data/out-limit-3"),
        ("file:///data/out", "/data/out-limit-3"),
        ("/data/jobs/..", "/data-limit-3"),
    ],
)
def test_output_is_next_to_the_output_of_the_job(path: str, output: str) -> None:
    spec = trial(job(path), 3).spec
    assert spec.write.path == output
    assert (spec.write.mode, spec.resume) == ("overwrite", False)


def test_error_records_are_below_the_output_of_the_trial() -> None:
    errors = {"maxRows": 5, "path": "s3://out/errors", "retryFailedRows": True}
    result = trial(job(errors=errors), 3).spec.errors
    assert (result.max_rows, result.path, result.retry_failed_rows) == (5, None, False)


@pytest.mark.parametrize(("limit", "rows"), [(None, 3), (2, 2), (9, 3)])
def test_lower_limit_counts(limit: int | None, rows: int) -> None:
    options: Any = trial(job(limit=limit), 3).spec.read.options
    assert options.limit == rows


def test_trial_of_a_job_that_replaces_rows_is_valid() -> None:
    fields = {"onChange": "recompute", "onDelete": "removeRows"}
    spec = trial(job(read={"format": "text", "paths": ["s3://in/"], **fields}), 3).spec
    assert BatchInferenceSpec.model_validate(spec.model_dump(by_alias=True)) == spec


@pytest.mark.parametrize(
    "changed",
    [job(read=SQL), job(write=TABLE), job("s3://out/"), job("/")],
    ids=["sql", "table", "bucket", "root"],
)
def test_job_without_a_trial_is_refused(changed: BatchInference, messages: Messages) -> None:
    with messages.raises(SpecError):
        trial(changed, 3)


def test_restart_of_a_store_has_no_other_mode_to_set(messages: Messages) -> None:
    with messages.raises(BadInput):
        with_new_output(job(write=STORE))
