"""Generates the field reference and the JSON schema for editors."""

from typing import Any

from pydantic import BaseModel

from batchinference.spec.base import ACCELERATOR, MEMORY
from batchinference.spec.crd_schema import Schema, WithDescriptions, expanded_schema
from batchinference.spec.durations import PATTERN as DURATION
from batchinference.spec.job import (
    API_VERSION,
    KIND,
    SCHEDULE_KIND,
    BatchInference,
    BatchInferenceSpec,
)
from batchinference.spec.quantities import NUMBER
from batchinference.spec.report import Report
from batchinference.spec.schedule import ScheduleSpec, ScheduleStatus
from batchinference.spec.status import BatchInferenceStatus

_INTRODUCTION = f"""---
search:
  boost: 0.1
---

# Field reference

This page lists the type, the default and the meaning of every field of a `{KIND}` of
`{API_VERSION}`, and in its last sections of a `{SCHEDULE_KIND}` ([Schedules](schedules.md)) and of
`_batchinference/report.json` ([The report of a job](report.md)).
Fields in **bold** are required. If a field such as `format` or `runtime` selects the other fields,
each of its values has its own table.

A quantity is a number with at most three decimal places such as `2` or `0.5`, or a text such as
`500m`, which is 0.5. A size is a text such as `512Mi`, `1.5Gi` or `8G`; an integer is in bytes.
A duration is a text such as `90s`, `1h30m` or `7d`, in whole days, hours, minutes and seconds.
"""
_NOTATIONS = {MEMORY: "size", DURATION: "duration"}
"""The names of types of texts in the reference, by the pattern of a field."""
_OPEN_TYPES = {
    NUMBER: "quantity",
    MEMORY: "integer or size",
    ACCELERATOR: "string or list of string",
}
"""The names of types that the CRD leaves open, by the pattern of a field."""
_SECTIONS: dict[str, type[BaseModel]] = {
    "spec": BatchInferenceSpec,
    "status": BatchInferenceStatus,
    f"{SCHEDULE_KIND}.spec": ScheduleSpec,
    f"{SCHEDULE_KIND}.status": ScheduleStatus,
    "report": Report,
}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a BatchInference file, for editors and other tools."""
    schema = BatchInference.model_json_schema(by_alias=True, schema_generator=WithDescriptions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_cel_rules(schema)}


def _without_cel_rules(schema: Any) -> Any:
    """Return the schema without CEL rules, because strict validators reject unknown keywords."""
    if isinstance(schema, list):
        return [_without_cel_rules(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: child for name, child in schema.items() if name != "x-kubernetes-validations"}
    return {name: _without_cel_rules(child) for name, child in kept.items()}


def reference() -> str:
    """Return docs/reference.md."""
    parts = [_INTRODUCTION]
    for section, model in _SECTIONS.items():
        parts += _section(section, expanded_schema(model))
    return "\n".join(parts)


def _section(path: str, schema: Schema, heading: str = "##", title: str = "") -> list[str]:
    """Return a heading, a table of the fields below `path`, and a section for each variant of each
    union among these fields."""
    unions: list[tuple[str, Schema]] = []
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += _rows(schema, path, unions)
    parts = [f"{heading} {title or path}\n", schema.get("description", "") + "\n"]
    parts.append("\n".join(rows) + "\n")
    for union_path, union in unions:
        for value, variant in union["variants"].items():
            title = f"{union_path}, {union['tag']}: {value}"
            parts += _section(union_path, variant, "###", title)
    return parts


def _rows(schema: Schema, path: str, unions: list[tuple[str, Schema]]) -> list[str]:
    """Return the table rows of the fields below `path`, and append unions with their path to
    `unions`."""
    rows = []
    required = schema.get("required", [])
    for name, child in schema.get("properties", {}).items():
        field = f"{path}.{name}"
        cell = f"**`{field}`**" if name in required else f"`{field}`"
        rows.append(f"| {cell} | {_type(child)} | {_default(child)} | {_meaning(child)} |")
        nested = {field: child, f"{field}[]": child.get("items", {}),
                  f"{field}.NAME": child.get("additionalProperties", {})}  # fmt: skip
        for nested_path, nested_schema in nested.items():
            if "variants" in nested_schema:
                unions.append((nested_path, nested_schema))
            rows += _rows(nested_schema, nested_path, unions)
    return rows


def _type(schema: Schema) -> str:
    if "variants" in schema:
        return f"object, by `{schema['tag']}`"
    if "enum" in schema:
        return "one of " + ", ".join(map(_shown, schema["enum"]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of string to {_type(schema['additionalProperties'])}"
    if "x-kubernetes-int-or-string" in schema:
        return "integer or string"
    pattern = schema.get("pattern", "")
    if "type" not in schema:
        return _OPEN_TYPES[pattern]
    return _NOTATIONS.get(pattern) or str(schema["type"])


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return _shown(str(value).lower() if isinstance(value, bool) else value)


def _shown(value: object) -> str:
    return f"`{value}`" if value != "" else '`""`'


def _meaning(schema: Schema) -> str:
    return str(schema.get("description", "")).replace("|", "\\|")
