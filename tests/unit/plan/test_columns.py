"""Steps that name columns which are not there are found before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan import plan_for_cluster
from batchinference.plan.columns import check_columns, input_columns
from batchinference.spec import SpecError
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.parsed import (
    drop_step,
    filter_step,
    label_step,
    nearest_step,
    select_step,
    spec_of,
)

IMAGES = {"format": "images", "paths": ["s3://in/"]}


def read(format_: str, **options: Any) -> Document:
    return {"read": {"format": format_, "paths": ["s3://in/"], "options": options}}


def problems(*steps: Document, columns: list[str] | None, **spec: Any) -> list[str]:
    made = spec_of(steps=list(steps), **spec)
    return [str(problem) for problem in check_columns(made, columns)]


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        pytest.param(read("text"), ["text"], id="text"),
        pytest.param(read("images"), ["image"], id="images"),
        pytest.param(read("binary"), ["bytes"], id="binary"),
        pytest.param(read("audio"), ["amplitude", "sample_rate"], id="audio"),
        pytest.param(read("video"), ["frame", "frame_index"], id="video"),
        pytest.param(
            read("video", include_timestamps=True, include_paths=True),
            ["frame", "frame_index", "frame_timestamp", "path"],
            id="video with timestamps and paths",
        ),
        pytest.param(read("numpy"), None, id="numpy"),
        pytest.param(read("webdataset"), None, id="webdataset"),
        pytest.param(read("text", include_paths=True), ["text", "path"], id="with paths"),
        pytest.param(read("parquet"), None, id="parquet"),
        pytest.param(read("parquet", columns=["a", "b"]), ["a", "b"], id="parquet that says"),
        pytest.param(
            read("parquet", columns=["a"], include_paths=True), ["a", "path"], id="and with paths"
        ),
        pytest.param(read("parquet", include_paths=True), None, id="parquet with paths"),
        pytest.param(read("csv"), None, id="csv"),
        pytest.param(read("csv", column_names=["a", "b"]), ["a", "b"], id="csv that says"),
        pytest.param(read("json"), None, id="json"),
    ],
)
def test_columns_of_the_input(given: Document, columns: list[str] | None) -> None:
    assert input_columns(spec_of(**given)) == columns


@pytest.mark.parametrize(
    "step",
    [
        filter_step("step", "len(label) > 0"),
        filter_step("step", "len(col('label')) > 0"),
        select_step("text", "label", name="step"),
        drop_step("label", name="step"),
        {**nearest_step(column="label"), "name": "step"},
    ],
    ids=["filter", "filter with col()", "select", "drop", "nearest"],
)
def test_a_step_that_reads_a_missing_column_is_named(step: Document) -> None:
    assert problems(step, columns=["text", "lable"]) == [
        "spec.steps[0]: step 'step' reads column 'label', but the columns here are text, lable; "
        "did you mean 'lable'?"
    ]


def test_a_model_that_reads_a_missing_column_is_named() -> None:
    assert problems(filter_step(), model_step(), columns=["prompt"])[1:] == [
        "spec.steps[1]: step 'embed' reads column 'text', but the columns here are prompt"
    ]


def test_every_missing_column_of_every_step_is_named() -> None:
    steps = [filter_step("a", "x > y"), filter_step("b", "z > 0")]
    assert [line.split(",")[0] for line in problems(*steps, columns=["text"])] == [
        "spec.steps[0]: step 'a' reads column 'x'",
        "spec.steps[0]: step 'a' reads column 'y'",
        "spec.steps[1]: step 'b' reads column 'z'",
    ]


@pytest.mark.parametrize(
    ("steps", "columns"),
    [
        pytest.param([model_step(), filter_step("k", "len(embedding) > 0")], ["text"], id="model"),
        pytest.param(
            [nearest_step(column="text"), filter_step("k", "len(matches) > 0")],
            ["text"],
            id="nearest",
        ),
        pytest.param(
            [label_step("kind"), filter_step("k", "kind == 'x'")], ["text", "path"], id="label"
        ),
    ],
)
def test_a_column_that_a_step_adds_is_there_afterwards(
    steps: list[Document], columns: list[str]
) -> None:
    assert problems(*steps, columns=columns, **read("text", include_paths=True)) == []


@pytest.mark.parametrize(
    "step", [drop_step("text", name="slim"), select_step("other", name="slim")], ids=["drop", "sel"]
)
def test_a_column_that_is_gone_is_missing_afterwards(step: Document) -> None:
    assert problems(step, filter_step(), columns=["text", "other"]) == [
        "spec.steps[1]: step 'keep' reads column 'text', but the columns here are other"
    ]


def test_a_label_needs_the_path_that_an_earlier_step_dropped() -> None:
    steps = [drop_step("path"), label_step()]
    assert problems(*steps, columns=["text", "path"], **read("text", include_paths=True)) == [
        "spec.steps[1]: step 'label' reads column 'path', but the columns here are text"
    ]


def test_columns_are_unknown_after_own_code() -> None:
    assert problems(python_step(), filter_step(expression="x > 0"), columns=["text"]) == []


def test_columns_of_self_describing_files_are_unknown() -> None:
    assert problems(filter_step(expression="x > 0"), columns=None) == []


@pytest.mark.parametrize("columns", [["text"], None], ids=["after own code", "unknown input"])
def test_columns_are_known_again_after_they_are_selected(columns: list[str] | None) -> None:
    steps = [python_step(), select_step("label"), filter_step()]
    assert problems(*steps, columns=columns) == [
        "spec.steps[2]: step 'keep' reads column 'text', but the columns here are label"
    ]


def test_steps_that_drop_every_column_are_refused() -> None:
    message = "spec.steps: they drop every column: nothing is left to write"
    assert problems(drop_step("text"), columns=["text"]) == [message]


@pytest.mark.parametrize(
    "step", [label_step("_bi_id", "step"), model_step("step")], ids=["label", "model"]
)
def test_names_of_the_products_own_columns_cannot_be_taken(step: Document) -> None:
    if "model" in step:
        step = step | {"model": step["model"] | {"output": "_bi_id"}}
    found = problems(python_step(), step, columns=None, **read("text", include_paths=True))
    assert found == [
        "spec.steps[1]: step 'step' adds column '_bi_id', but columns that begin with '_bi_' are "
        "the product's own"
    ]


def test_a_plan_is_refused_for_its_columns() -> None:
    spec = spec_of(**document(read=IMAGES, steps=[model_step()])["spec"])
    with pytest.raises(SpecError) as refusal:
        plan_for_cluster(spec)
    assert str(refusal.value) == (
        "spec.steps[0]: step 'embed' reads column 'text', but the columns here are image"
    )
