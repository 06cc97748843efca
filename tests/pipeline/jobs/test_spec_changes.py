"""The fields in which a job differs from the job that began an output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline.commit.changes import changed_spec
from batchinference.pipeline.commit.layout import work_of
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import without_secrets
from plugins.messages import Messages
from support.jobs.on_ray import job_document

SIZE_64 = {"decode": {"column": "a", "format": "image", "size": [64, 64]}}
SIZE_32 = {"decode": {"column": "a", "format": "image", "size": [32, 32]}}


def own(**arguments: str) -> dict[str, Any]:
    return {"python": {"callable": "a:f", "callArgs": arguments}}


def spec_of(*steps: dict[str, Any], **fields: Any) -> BatchInferenceSpec:
    named = [{"name": f"s{number}", **step} for number, step in enumerate(steps)]
    return parse(job_document("a", "in", "out", steps=named, **fields)).spec


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (spec_of(SIZE_64), spec_of(SIZE_32)),
        (spec_of(SIZE_64), spec_of(SIZE_64, {"filter": "x > 1"})),
        (spec_of({"filter": "x"}), spec_of({"filter": f"x + '{'y' * 200}'"})),
        (spec_of(own(k="s3")), spec_of(own(k="s4"))),
        (spec_of(own(k="s3")), spec_of(own(k="s3", a="s4"), {"filter": "x"})),
        (spec_of(), spec_of(resume=False, errors={"maxRows": 3})),
    ],
    ids=["value", "added step", "long value", "arguments", "arguments and a step", "same work"],
)
def test_changes_of_a_spec(
    tmp_path: Path, before: BatchInferenceSpec, now: BatchInferenceSpec, messages: Messages
) -> None:
    place = Location(str(tmp_path / "spec.json"))
    place.write(json.dumps(without_secrets(before)).encode())
    messages.check(changed_spec(place, work_of(now)))


def test_only_the_first_changes_are_listed(tmp_path: Path) -> None:
    place = Location(str(tmp_path / "spec.json"))
    step = {"filter": "x"}
    place.write(json.dumps(without_secrets(spec_of(step))).encode())
    text = changed_spec(place, work_of(spec_of(*[step] * 6)))
    assert text.count(" was not set, is ") == 3
    assert text.endswith("; and 2 more")


@pytest.mark.parametrize("content", [None, b"{", b'{"read": 1}'], ids=["gone", "cut", "other"])
def test_a_spec_that_cannot_be_read_has_no_known_changes(
    tmp_path: Path, content: bytes | None
) -> None:
    place = Location(str(tmp_path / "spec.json"))
    if content is not None:
        place.write(content)
    assert changed_spec(place, work_of(spec_of())) == ""
