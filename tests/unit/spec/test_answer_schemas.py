"""The schema of answers: its JSON Schema, the type of its column, and refused schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.models.answer_schema import AnswerSchema
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document
from support.documents.refusals import refused, running, short
from support.documents.yaml_files import read_yaml

SCHEMAS = read_yaml(Path(__file__).with_name("json_schemas.yaml"))
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}


def closed(**properties: Any) -> Document:
    object_ = {"type": "object", "properties": properties, "required": [*properties]}
    return {**object_, "additionalProperties": False}


@pytest.mark.parametrize(
    ("field", "expected"), [tuple(case.values()) for case in SCHEMAS["fields"]], ids=short
)
def test_fields_are_written_as_json_schema(field: Document, expected: Document) -> None:
    schema = AnswerSchema.model_validate({"fields": [{"name": "a", **field}]})
    assert schema.document == closed(a=expected)


@pytest.mark.parametrize(
    ("schema", "expected"), [tuple(case.values()) for case in SCHEMAS["column types"]], ids=short
)
def test_json_schema_has_a_column_type(schema: Document, expected: Any) -> None:
    given = {"type": "object", "properties": {"a": schema}, "$defs": schema.get("$defs", {})}
    for document, kind in ((schema, expected), (given, {"a": expected})):
        assert AnswerSchema.model_validate({"jsonSchema": document}).column_type == kind


def test_schema_within_itself_is_json() -> None:
    schema = AnswerSchema.model_validate({"jsonSchema": {"type": "array", "items": {"$ref": "#"}}})
    assert schema.column_type == [["json"]]


def many() -> Document:
    """Return a schema whose references multiply its values to more than a job can have."""
    more = {
        f"d{n}": {"type": "object", "properties": {x: {"$ref": f"#/$defs/d{n + 1}"} for x in "ab"}}
        for n in range(40)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**more, "d40": NAME}}


def chain(length: int, end: str) -> Document:
    """Return a schema with references that lead to each other, one after the other."""
    links = {
        f"d{n}": {"type": "array", "items": {"$ref": f"#/$defs/d{n + 1}"}}
        for n in range(length - 1)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length - 1}": {"$ref": end}}}


def test_deep_schema_is_json() -> None:
    kind: Any = AnswerSchema.model_validate({"jsonSchema": chain(400, "#")}).column_type
    while kind != "json":
        (kind,) = kind


LARGE = {
    "many values": many(),
    "deep pattern": {"pattern": "(" * 5000 + ")" * 5000},
    "long chain": chain(400, "#/$defs/d400"),
}


@pytest.mark.parametrize("schema", LARGE.values(), ids=LARGE)
def test_large_schema_is_refused(schema: Document, messages: Messages) -> None:
    messages.check(refused(running(chat(schema={"jsonSchema": schema}))))
