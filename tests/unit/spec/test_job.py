"""The resource: its version, kind, name and sections, and their defaults."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.minimal import document, model_step
from support.documents.refusals import refused


def test_spec_is_frozen() -> None:
    job = parse(document())
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        job.spec.write.path = "elsewhere"  # type: ignore[misc]


@pytest.mark.parametrize("value", [None, [], "text", 7, True])
def test_document_must_be_a_mapping(value: Any) -> None:
    assert refused(value).startswith("expected a mapping, got ")


def test_status_is_ignored() -> None:
    assert parse({**document(), "status": {"phase": "Whatever", "more": [1]}}).status


def test_steps_are_limited_to_32() -> None:
    steps = [model_step(f"step-{number}") for number in range(33)]
    assert parse(document(steps=steps[:32]))
    assert refused(document(steps=steps)) == (
        "spec.steps: expected at most 32 items, got 33. Remove 1 item"
    )


def test_label_from_path_requires_include_paths(messages: Messages) -> None:
    label = {"name": "label", "labelFromPath": {"column": "class", "index": -2}}
    messages.check(refused(document(steps=[label])))
    read = {"format": "text", "paths": ["in"], "options": {"includePaths": True}}
    assert parse(document(steps=[label], read=read))
    read["options"] = {"pathColumn": "source"}
    assert "remove pathColumn" in "".join(refused(document(steps=[label], read=read)))
