"""Messages about invalid values say what to write instead."""

from __future__ import annotations

import math

import pytest

from batchinference.spec.value_fixes import (
    cron_fix,
    duration_fix,
    label_name,
    length_fix,
    memory_fix,
    number_fix,
)
from plugins.messages import Messages
from support.documents.minimal import document, model_step, python_step
from support.documents.refusals import refused, refused_at, short


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (4, "4Gi"),
        (1.5, "1.5Gi"),
        (512, "512Gi"),
        (4096, "4096Mi"),
        (4 << 30, "4096Mi"),
        ("4GB", "4Gi"),
        ("4 gib", "4Gi"),
        ("512m", "512Mi"),
        ("1.5 TB", "1.5Ti"),
    ],
    ids=short,
)
def test_memory_is_written_with_a_unit(value: object, written: str) -> None:
    assert memory_fix(value) == f'. Write "{written}"'


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (3600, "1h"),
        (59, "59s"),
        (86461.5, "24h1m2s"),
        ("2 hours", "2h"),
        ("1 day", "1d"),
        ("30 Min", "30m"),
        ("5sec", "5s"),
    ],
    ids=short,
)
def test_duration_is_written_with_a_unit(value: object, written: str) -> None:
    assert duration_fix(value) == f'. Write "{written}"'


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("every 10 minutes", "*/10 * * * *"),
        ("@every 12hrs", "0 */12 * * *"),
        *((period, "") for period in ("every 90m", "every 45m", "every 30h", "every 2months")),
    ],
)
def test_schedule_is_written_only_with_the_same_times(value: str, written: str) -> None:
    assert cron_fix(value) == (f'. Write "{written}"' if written else "")


def test_name_is_not_corrected_to_one_that_is_too_long() -> None:
    assert [label_name("9" * digits) for digits in (36, 37)] == ["run-" + "9" * 36, ""]


def test_time_of_day_may_be_meant_by_a_number_of_seconds() -> None:
    assert duration_fix(90) == '. Write "1m30s", or "1h30m" for 1:30'


@pytest.mark.parametrize(
    "value", ["", "-1Gi", "3 months", "٣Gi", None, 0, -5, math.nan, math.inf, 10**400], ids=short
)
def test_unit_of_other_values_is_unknown(value: object) -> None:
    assert memory_fix(value) == duration_fix(value) == ""


@pytest.mark.parametrize(
    ("value", "full"),
    [
        ("5%", False),
        ("-0.5", False),
        (True, True),
        (2.0, True),
        ("500m", True),
        ("half", False),
        (2.5, True),
        (math.inf, False),
        (None, True),
    ],
    ids=short,
)
def test_number_is_written_as_a_number(value: object, full: bool, messages: Messages) -> None:
    messages.check(number_fix(value, integer=full))


@pytest.mark.parametrize(
    ("length", "bound", "written"),
    [(64, 40, "Remove 24 characters"), (41, 40, "Remove 1 character"), (0, 2, "Add 2 characters")],
)
def test_length_is_corrected(length: int, bound: int, written: str) -> None:
    assert length_fix(length, bound, "character") == f". {written}"


@pytest.mark.parametrize(
    ("callable_", "written"),
    [
        ("clean", "steps:clean"),
        ("steps.clean", "steps:clean"),
        ("./steps.py:clean", "steps:clean"),
        ("src/steps:clean", "src.steps:clean"),
        ("steps:clean()", "steps:clean"),
        ("my-steps:clean", "my_steps:clean"),
        ("lambda b: b", "steps:NAME"),
    ],
)
def test_callable_is_written_with_its_module(callable_: str, written: str) -> None:
    assert f"rite {written}" in refused(document(steps=[python_step(callable_=callable_)]))


def test_long_list_of_names_is_left_out_next_to_a_suggestion() -> None:
    model = {**model_step()["model"], "task": "embeddings"}
    assert refused(document(steps=[model_step(model=model)])).endswith(
        ".model.task: 'embeddings' is unknown; did you mean 'feature-extraction'?"
    )


def test_empty_list_is_explained_with_an_example() -> None:
    assert refused_at("spec.read.paths", []).endswith("got 0. Write paths: [./data]")
    assert refused_at("spec.write.partitionBy", []).endswith("got 0. Add 1 item")
