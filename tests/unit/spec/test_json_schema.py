"""The JSON schema that editors use to check the file of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from batchinference.spec import SpecError, parse
from support.documents.minimal import Document, document
from support.documents.refusals import valid_documents
from support.documents.variations import REMOVED, Keys, at, changed, full_document, keys_in, named
from support.tiers import examples

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/batchinference.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)
EXAMPLES = sorted((ROOT / "examples").glob("*/job.yaml"))


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_schema_accepts_the_examples() -> None:
    assert EXAMPLES
    for file in EXAMPLES:
        example = yaml.safe_load(file.read_text(encoding="utf-8"))
        VALIDATOR.validate(example)
        assert parse(example).metadata.name == file.parent.name


def test_schema_accepts_valid_jobs() -> None:
    for valid in valid_documents().values():
        VALIDATOR.validate(valid)


def _fixed_mappings(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the places of mappings that have a fixed set of fields."""
    free = {"metadata", "inputs", "factoryArgs", "constructorArgs", "callArgs", "nodeSelector"}
    free |= {"constructorRefs", "renameColumns", "addColumns", "custom", "onCause", "fields"}
    free |= {"rayStartParams", "labels", "annotations", "matchLabels", "volumeAttributes", "body"}
    for result in [keys, *keys_in(value)]:
        fixed = not free.intersection(map(str, result)) and result[-2:] != ("model", "options")
        fixed = fixed and result[-1:] != ("profiles",)
        if fixed and isinstance(at(value, result), dict):
            yield result


def test_schema_refuses_unknown_fields() -> None:
    for keys in _fixed_mappings(full_document()):
        wrong = changed(full_document(), (*keys, "unknownField"), 1)
        assert not VALIDATOR.is_valid(wrong), named(keys)
        with pytest.raises(SpecError, match=r"unknown (field|option)"):
            parse(wrong)


def test_schema_requires_each_section() -> None:
    for field in ("apiVersion", "kind", "metadata", "spec"):
        assert not VALIDATOR.is_valid(changed(document(), (field,), REMOVED)), field


@given(
    st.sampled_from(list(valid_documents().values())),
    st.data(),
    st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text(), max_size=2),
)
@settings(max_examples=examples(400), deadline=None)
def test_schema_accepts_all_that_the_parser_accepts(
    original: Document, data: st.DataObject, value: Any
) -> None:
    other = changed(original, data.draw(st.sampled_from(list(keys_in(original)))), value)
    try:
        parse(other)
    except SpecError:
        return
    VALIDATOR.validate(other)


def test_schema_describes_every_field() -> None:
    objects = [SCHEMA, *SCHEMA["$defs"].values()]
    fields = [
        (item.get("title"), name, field)
        for item in objects
        for name, field in item.get("properties", {}).items()
    ]
    assert len(fields) > 80
    assert [(title, name) for title, name, field in fields if not _described(field)] == []


def _described(field: dict[str, Any]) -> bool:
    target = field.get("$ref", "").removeprefix("#/$defs/")
    return bool(field.get("description") or SCHEMA["$defs"].get(target, {}).get("description"))
