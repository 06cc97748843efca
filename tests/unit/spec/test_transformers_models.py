"""Models of transformers: the inputs and fields of each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic.alias_generators import to_camel

from batchinference.spec import parse
from batchinference.spec.models.transformers_tasks import FIELDS, GENERATION, INPUTS, Task
from support.documents.minimal import Document
from support.documents.refusals import refused, running
from support.documents.yaml_files import read_yaml

MODEL = "spec.steps[0].model"
TASKS = get_args(Task)
REQUIRED, FIELD_VALUES = read_yaml(Path(__file__).with_name("transformers_fields.yaml")).values()
"""Required fields of each task, and a value of each field that is not for all tasks."""


def model(task: str, **fields: Any) -> Document:
    """Return a model with the fields that its task requires. `fields` override them."""
    inputs = {INPUTS[task][0] if task in INPUTS else "text": "mine"}
    return {
        **{"runtime": "transformers", "task": task, "source": "org/model", "inputs": inputs},
        **{"output": "out", **REQUIRED.get(task, {}), **fields},
    }


def refusal_of(task: str, **fields: Any) -> str:
    message = refused(running(model(task, **fields)))
    assert message.startswith(f"{MODEL}: ")
    return message.removeprefix(f"{MODEL}: ")


def test_task_is_accepted_with_its_required_fields() -> None:
    for task in TASKS:
        assert parse(running(model(task))), task


def test_tasks_have_inputs_or_generate() -> None:
    assert set(INPUTS) | set(GENERATION) == set(TASKS)


@pytest.mark.parametrize("task", INPUTS)
def test_task_accepts_its_own_inputs_only(task: str) -> None:
    required, *optional = INPUTS[task]
    every = dict.fromkeys(INPUTS[task], "mine")
    for inputs in ({required: "mine"}, every):
        assert parse(running(model(task, inputs=inputs)))
    for wrong, column in (({**every, "other": "b"}, "COLUMN"), ({"other": "mine"}, "mine"),
                          (dict.fromkeys(optional, "a"), "COLUMN")):  # fmt: skip
        fix = f"got {', '.join(wrong)}. Write inputs: {{{required}: {column}}}"
        assert not wrong or refusal_of(task, inputs=wrong).endswith(fix)


def test_field_of_another_task_is_refused() -> None:
    offenders = []
    others = [(task, field) for task in TASKS for field in FIELDS if task not in FIELDS[field]]
    for task, field in others:
        alias = to_camel(field)
        message = refusal_of(task, **{alias: FIELD_VALUES[field]})
        if not (message.startswith(f"'{alias}' is for ") and f", not for '{task}'" in message):
            offenders.append(message)
    assert len(others) > 100
    assert offenders == []
