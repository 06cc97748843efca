"""The work key of an output: the same key for the same work, and another key for any other work."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.pipeline.commit.layout import Layout, work_key
from batchinference.pipeline.commit.lease import Lease
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from support.documents.minimal import document, model_step, python_step


def spec(**fields: Any) -> BatchInferenceSpec:
    given = {"steps": [model_step(), python_step()], **fields}
    return parse(document("job", **given)).spec


def with_model(**fields: Any) -> dict[str, Any]:
    return {"steps": [model_step(**fields), python_step()]}


def with_python(**fields: Any) -> dict[str, Any]:
    return {"steps": [model_step(), python_step(**fields)]}


SAME = {
    "batch size": with_model(batchSize=7),
    "replicas": with_model(replicas={"min": 2, "max": 9}),
    "resources": with_model(resources={"gpu": 1, "cpu": 2, "memory": "8Gi"}),
    "replicas of own code": with_python(replicas={"max": 3}),
    "cluster": {"cluster": {"image": "other", "workers": {"max": 50}}},
    "mode": {"write": {"format": "parquet", "path": "s3://out/result/", "mode": "overwrite"}},
    "resume": {"resume": False},
    "changed files": {
        "read": {
            "format": "text",
            "paths": ["s3://in/texts/"],
            "onChange": "recompute",
            "onDelete": "removeRows",
        }
    },
    "limits of errors": {"errors": {"maxRows": 3, "maxPercent": 2}},
    "a default that is spelt out": {
        "write": {"format": "parquet", "path": "s3://out/result/", "compression": "snappy"}
    },
}
OTHER = {
    "format": {"read": {"format": "binary", "paths": ["s3://in/texts/"]}, "steps": []},
    "paths": {"read": {"format": "text", "paths": ["s3://in/texts/", "s3://in/more/"]}},
    "read options": {
        "read": {
            "format": "text",
            "paths": ["s3://in/texts/"],
            "options": {"dropEmptyLines": False},
        }
    },
    "no steps": {"steps": []},
    "order of steps": {"steps": [python_step(), model_step()]},
    "name of a step": with_model(name="other"),
    "model": {"steps": [python_step()]},
    "callable": with_python(callable_="module:Other"),
    "arguments": {
        "steps": [
            model_step(),
            python_step(python={"callable": "module:Class", "constructorArgs": {"size": 2}}),
        ]
    },
    "output format": {"write": {"format": "json", "path": "s3://out/result/"}},
    "output path": {"write": {"format": "parquet", "path": "s3://out/other/"}},
    "compression": {
        "write": {"format": "parquet", "path": "s3://out/result/", "compression": "zstd"}
    },
    "place of the errors": {"errors": {"maxRows": 3, "path": "s3://bad/rows/"}},
}


@pytest.mark.parametrize("fields", SAME.values(), ids=SAME)
def test_speed_settings_do_not_change_the_key(fields: dict[str, Any]) -> None:
    assert work_key(spec(**fields)) == work_key(spec())


@pytest.mark.parametrize("fields", OTHER.values(), ids=OTHER)
def test_other_settings_change_the_key(fields: dict[str, Any]) -> None:
    assert work_key(spec(**fields)) != work_key(spec())


def test_job_name_is_not_part_of_the_key() -> None:
    keys = {work_key(parse(document(name)).spec) for name in ("one", "two")}
    assert len(keys) == 1


def test_all_files_are_below_the_output() -> None:
    layout = Layout.of(spec())
    uris = [layout.state.uri, layout.success.uri, layout.job.uri, layout.report.uri]
    assert uris == [
        "s3://out/result/_batchinference",
        "s3://out/result/_SUCCESS",
        "s3://out/result/_batchinference/job.json",
        "s3://out/result/_batchinference/report.json",
    ]
    assert Lease(layout.key, 12, "0a1b2c3d4e5f").place(layout).uri == (
        "s3://out/result/_batchinference/attempts/0012-0a1b2c3d"
    )
    assert layout.errors.uri == "s3://out/result/_batchinference/errors"


def test_files_of_a_table_are_staged_in_the_state() -> None:
    table = spec(write={"format": "delta", "path": "s3://out/result/"})
    assert Layout.of(table).data.uri == "s3://out/result/_batchinference/staged"
    assert Layout.of(spec()).data.uri == "s3://out/result/"
