"""docs/reference.md documents every field."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from batchinference.spec.job import SCHEDULE_KIND, BatchInferenceSpec
from batchinference.spec.report import Report
from batchinference.spec.schedule import ScheduleSpec, ScheduleStatus
from batchinference.spec.status import BatchInferenceStatus

TEXT = (Path(__file__).parents[3] / "docs/reference.md").read_text(encoding="utf-8")
"""test_generated_files.py checks that the file is up to date."""
ROWS = [line for line in TEXT.splitlines() if line.startswith(("| `", "| **`"))]


def fields(model: type[BaseModel], path: str) -> Iterator[str]:
    """Yield the paths of all fields of a model and of its nested models."""
    for name, field in model.model_fields.items():
        full = f"{path}.{field.alias or name}"
        yield full
        for inner, mark in inner_models(field.annotation):
            yield from fields(inner, full + mark)


def inner_models(annotation: Any, mark: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, mark
    else:
        inside = {list: "[]", dict: ".NAME"}.get(typing.get_origin(annotation), mark)
        for argument in typing.get_args(annotation):
            yield from inner_models(argument, inside)


OPEN = "status.operator."
"""The fields below this one are no part of the API."""
ALL = {
    *fields(BatchInferenceSpec, "spec"),
    *(path for path in fields(BatchInferenceStatus, "status") if not path.startswith(OPEN)),
    *fields(ScheduleSpec, f"{SCHEDULE_KIND}.spec"),
    *fields(ScheduleStatus, f"{SCHEDULE_KIND}.status"),
    *fields(Report, "report"),
}


def row_of(field: str) -> list[str]:
    """Return the cells of a field's first row."""
    row = next(row for row in ROWS if f"`{field}`" in row.split(" | ")[0])
    return [cell.strip() for cell in row.strip("|").split(" | ")]


def test_reference_names_types_of_which_the_schema_has_several() -> None:
    types = {
        "spec.steps[].resources.acceleratorType": "string or list of string",
        "spec.steps[].resources.gpu": "quantity",
        "spec.steps[].batchSize": "integer or string",
        "spec.read.options.maxRowBytes": "integer or size",
        "spec.steps[].resources.memory": "size",
    }
    assert {field: row_of(field)[1] for field in types} == types


def test_reference_gives_type_and_meaning_of_every_field() -> None:
    for field in {row.split("`")[1] for row in ROWS}:
        _, kind, _, meaning, *_ = row_of(field)
        assert kind, field
        assert meaning, field


def test_reference_has_a_row_for_each_field_and_no_others() -> None:
    assert {re.sub(r"^\| \**`(.*?)`.*", r"\1", row) for row in ROWS} == ALL


def test_reference_rows_have_four_cells() -> None:
    assert [row for row in ROWS if len(re.split(r"(?<!\\)\|", row)) != 6] == []
