"""The field reference and the JSON schema for editors, generated from the models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from batchinference.spec.descriptions import WithDescriptions
from batchinference.spec.job import (
    API_VERSION,
    KIND,
    SCHEDULE_KIND,
    BatchInference,
    BatchInferenceSpec,
)
from batchinference.spec.report import Report
from batchinference.spec.schedule import ScheduleSpec, ScheduleStatus
from batchinference.spec.schema import Schema, expanded_schema
from batchinference.spec.status import BatchInferenceStatus

_INTRODUCTION = f"""# Field reference

Generated from the models by `make generate`; a test fails when it differs from them.
Every field of a `{KIND}` of `{API_VERSION}`: its type, what it is when absent, and what it means.
The last sections have the fields of a `{SCHEDULE_KIND}` ([schedules.md](schedules.md)) and of
`_batchinference/report.json` ([report.md](report.md)).
Fields in **bold** are required. Where a field such as `format` or `runtime` decides which others
there are, each of its values has a table of its own.
"""
_SECTIONS: dict[str, type[BaseModel]] = {
    "spec": BatchInferenceSpec,
    "status": BatchInferenceStatus,
    f"{SCHEDULE_KIND}.spec": ScheduleSpec,
    f"{SCHEDULE_KIND}.status": ScheduleStatus,
    "report": Report,
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of a BatchInference file, for editors and other tools."""
    schema = BatchInference.model_json_schema(by_alias=True, schema_generator=WithDescriptions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_rules(schema)}


def _without_rules(schema: Any) -> Any:
    """The schema without the API server's rules, which strict validators refuse."""
    if isinstance(schema, list):
        return [_without_rules(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: child for name, child in schema.items() if name != "x-kubernetes-validations"}
    return {name: _without_rules(child) for name, child in kept.items()}


def reference() -> str:
    """docs/reference.md."""
    parts = [_INTRODUCTION]
    for section, model in _SECTIONS.items():
        parts += _section(section, expanded_schema(model))
    return "\n".join(parts)


def _section(path: str, schema: Schema, heading: str = "##", title: str = "") -> list[str]:
    """A heading, a table of the fields below `path`, then a section for each arm of each union."""
    unions: list[tuple[str, Schema]] = []
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    rows += _rows(schema, path, unions)
    parts = [f"{heading} {title or path}\n", schema.get("description", "") + "\n"]
    parts.append("\n".join(rows) + "\n")
    for place, union in unions:
        for value, arm in union["arms"].items():
            parts += _section(place, arm, "###", f"{place}, {union['tag']}: {value}")
    return parts


def _rows(schema: Schema, path: str, unions: list[tuple[str, Schema]]) -> list[str]:
    rows = []
    required = schema.get("required", [])
    for name, child in schema.get("properties", {}).items():
        full = f"{path}.{name}"
        shown = f"**`{full}`**" if name in required else f"`{full}`"
        rows.append(f"| {shown} | {_type(child)} | {_default(child)} | {_meaning(child)} |")
        below = {full: child, f"{full}[]": child.get("items", {}),
                 f"{full}.NAME": child.get("additionalProperties", {})}  # fmt: skip
        for place, inner in below.items():
            if "arms" in inner:
                unions.append((place, inner))
            rows += _rows(inner, place, unions)
    return rows


def _type(schema: Schema) -> str:
    if "arms" in schema:
        return f"object, by `{schema['tag']}`"
    if "enum" in schema:
        return "one of " + ", ".join(f"`{value}`" for value in schema["enum"])
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of string to {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any"))


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value is None or isinstance(value, dict | list):
        return ""
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _meaning(schema: Schema) -> str:
    return str(schema.get("description", "")).replace("|", "\\|")
