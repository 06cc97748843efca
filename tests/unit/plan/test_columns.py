"""Steps and outputs that name missing columns are refused before a job runs."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan.column_checks import check_columns, replaced_columns
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.minimal import Document, model_step, python_step
from support.documents.parsed import drop_step, filter_step, label_step, select_step, spec_of


def read(format_: str, **options: Any) -> Document:
    return {"read": {"format": format_, "paths": ["s3://in/"], "options": options}}


def problems(*steps: Document, columns: list[str] | None, **spec: Any) -> list[str]:
    made = spec_of(steps=list(steps), **spec)
    return [str(problem) for problem in check_columns(made, columns)]


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        (read("text"), ["text"]),
        (read("text", includePaths=True), ["text", "path"]),
        (read("images"), ["image"]),
        (read("binary"), ["bytes"]),
        (read("audio"), ["amplitude", "sample_rate"]),
        (read("video"), ["frame", "frame_index"]),
        (
            read("video", includeTimestamps=True, includePaths=True),
            ["frame", "frame_index", "frame_timestamp", "path"],
        ),
        (read("parquet", columns=["a", "b"]), ["a", "b"]),
        (read("parquet", columns=["a"], includePaths=True), ["a", "path"]),
        (read("parquet", includePaths=True), None),
        (read("csv", columnNames=["a", "b"]), ["a", "b"]),
        *((read(format_), None) for format_ in ("numpy", "webdataset", "parquet", "csv", "json")),
    ],
    ids=str,
)
def test_columns_of_the_input(given: Document, columns: list[str] | None) -> None:
    assert spec_of(**given).read.columns == columns


REFUSED = {
    "filter": [filter_step("step", "len(label) > 0")],
    "filter with col()": [filter_step("step", "len(col('label')) > 0")],
    "select": [select_step("text", "label", name="step")],
    "drop": [drop_step("label", name="step")],
    "model": [model_step("step", model={**model_step()["model"], "inputs": {"text": "label"}})],
    "dropped before": [drop_step("text", name="slim"), filter_step()],
    "not selected before": [select_step("lable", name="slim"), filter_step()],
    "label without a path": [drop_step("path"), label_step()],
    "after Python code": [python_step(), select_step("label"), filter_step()],
    "no column left": [drop_step("text", "lable", "path")],
    "reserved label": [python_step(), label_step("_bi_id", "step")],
    "reserved output": [
        python_step(),
        model_step("step", model={**model_step()["model"], "output": "_bi_id"}),
    ],
}


@pytest.mark.parametrize("case", REFUSED)
def test_steps_with_wrong_columns_are_refused(case: str, messages: Messages) -> None:
    columns = ["text", "lable", "path"]
    messages.check(problems(*REFUSED[case], columns=columns, **read("text", includePaths=True)))


@pytest.mark.parametrize(
    "expression",
    ["web", "n == web", "n == true", "my > 1", "a.b > 1", "nn > 1", "n > today", "len(web) > 1",
     "col('x y') > 1"],
)  # fmt: skip
def test_fix_of_a_name_that_is_no_column(expression: str, messages: Messages) -> None:
    (message,) = problems(
        {"name": "s", "addColumns": {"x": expression}}, columns=["n", "my col", "a.b"]
    )
    messages.check(message)


OUTPUT_O = {**model_step("m"), "model": {**model_step("m")["model"], "output": "o"}}
OUTPUT_TEXT = {**model_step("t"), "model": {**model_step("t")["model"], "output": "text"}}


@pytest.mark.parametrize(
    ("steps", "notes"),
    [
        ([OUTPUT_O, {**OUTPUT_O, "name": "n"}], ["step 'n' replaces column 'o' of step 'm'"]),
        ([OUTPUT_TEXT], ["step 't' replaces column 'text' of the input"]),
        ([filter_step("f", "o > 1"), OUTPUT_O], ["step 'm' replaces column 'o' of the input"]),
        ([OUTPUT_O, {"name": "r", "renameColumns": {"o": "text"}}, OUTPUT_TEXT],
         ["step 't' replaces column 'text' of step 'm'"]),
        ([OUTPUT_O, {"name": "r", "renameColumns": {"o": "p"}}, OUTPUT_O], []),
        ([OUTPUT_O, drop_step("o", name="d"), OUTPUT_O], []),
        ([OUTPUT_O, select_step("text", name="s"), OUTPUT_O], []),
        ([OUTPUT_O, python_step(), OUTPUT_O], []),
        ([OUTPUT_O, {"name": "a", "addColumns": {"o": "o.x"}}], []),
        ([{"name": "d", "decode": {"column": "b", "format": "image"}}], []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [read("csv"), read("text")])
def test_replaced_columns_are_noted(
    steps: list[Document], notes: list[str], given: Document
) -> None:
    parsed = [Step.model_validate(step) for step in steps]  # also with the same names
    spec = spec_of(**given).model_copy(update={"steps": parsed})
    result = [note.partition(".")[0] for note in replaced_columns(spec, spec.read.columns)]
    assert result == notes


CLASSIFIER = {
    "name": "classify",
    "model": {
        **{"runtime": "transformers", "source": "./m", "task": "text-classification"},
        **{"inputs": {"text": "text"}, "output": "o"},
    },
}
DECODED: Document = {
    "name": "d",
    "decode": {"column": "text", "format": "json", "fields": {"n": "int64"}, "output": "o"},
}
DECIMAL = {"name": "d", "decode": {**DECODED["decode"], "fields": {"n": "decimal<10, 2>"}}}
TOP_LABELS = {**CLASSIFIER, "model": {**CLASSIFIER["model"], "topK": 2}}
RENAMED = {"name": "rename", "renameColumns": {"o": "p q"}}


@pytest.mark.parametrize(
    ("steps", "column", "parts"),
    [
        ([CLASSIFIER], "o", ["a struct of label and score", "such as {value: o.label}"]),
        ([TOP_LABELS], "o", ["a list", "{value: o[0].label}"]),
        ([CLASSIFIER, RENAMED], "p q", ["a struct", "{value: col('p q').label}"]),
        ([DECODED], "o", ["a struct of n", "{value: o.n}"]),
        ([CLASSIFIER], "o.lable", ["Its fields: label, score", "did you mean 'label'?"]),
        ([TOP_LABELS], "o.label", ["not part of 'o'"]),
        ([TOP_LABELS], "o[0]", ["a struct", "{value: o[0].label}"]),
        ([DECIMAL], "o.n", ["o.n' is decimal<10,2>", "Make it text"]),
    ],
)
def test_result_that_cannot_name_directories_is_refused(
    steps: list[Document], column: str, parts: list[str]
) -> None:
    write = {"format": "parquet", "path": "s3://out/", "partitionBy": [column]}
    (message,) = problems(*steps, columns=["text"], write=write)
    assert message.startswith("spec.write.partitionBy: ")
    assert [part for part in parts if part not in message] == []


def writing(format_: str, **fields: Any) -> Document:
    return {"write": {"format": format_, "path": "s3://out/", **fields}}


def partitioned(column: str) -> Document:
    return writing("parquet", partitionBy=[column])


@pytest.mark.parametrize(
    ("steps", "columns", "spec"),
    [
        *(
            ([TOP_LABELS, {"name": "replace", **step}], ["text"], partitioned("o"))
            for step in (
                {"addColumns": {"o": "o.label"}},
                {"python": {"callable": "own:f"}},
                {"explode": {"column": "o"}},
            )
        ),
        ([TOP_LABELS], ["text"], partitioned("o[0].label")),
        ([TOP_LABELS], ["text", "unknown"], partitioned("unknown.label")),
        ([model_step(), filter_step("k", "len(embedding) > 0")], ["text"], {}),
        ([label_step("kind"), filter_step("k", "kind == 'x'")], ["text", "path"],
         read("text", includePaths=True)),
        ([], ["image", "path"], writing("parquet", columns=["path"])),
        ([], ["image", "path"], writing("csv", columns=["image"], partitionBy=["path"])),
        ([], ["image", "path"], writing("webdataset", keyColumn="path")),
    ],
)  # fmt: skip
def test_columns_that_exist_are_accepted(
    steps: list[Document], columns: list[str], spec: Document
) -> None:
    assert problems(*steps, columns=columns, **spec) == []


@pytest.mark.parametrize("column", ["o[0].label", "unknown.label"])
def test_part_of_a_column_names_no_directories_of_a_table(column: str) -> None:
    spec = writing("delta", partitionBy=[column])
    (message,) = problems(TOP_LABELS, columns=["text", "unknown"], **spec)
    assert "such as {value: " in message


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("label == 'x'", "o.label"),
        ("text != null", "text is not None"),
        ("df.text == 'x'", "text == 'x'"),
        ("row['text'] == 'x'", "text == 'x'"),
    ],
)
def test_expression_with_the_right_column_is_advised(expression: str, written: str) -> None:
    (message,) = problems(CLASSIFIER, filter_step("f", expression), columns=["text"])
    assert message.endswith(f". Write {written}")


def test_missing_columns_of_all_steps_are_named() -> None:
    steps = [filter_step("a", "x > y"), filter_step("b", "z > 0")]
    assert [line.split(",")[0] for line in problems(*steps, columns=["text"])] == [
        "spec.steps[0].filter: step 'a' reads column 'x'",
        "spec.steps[0].filter: step 'a' reads column 'y'",
        "spec.steps[1].filter: step 'b' reads column 'z'",
    ]


@pytest.mark.parametrize("step", [drop_step("o", name="s"), select_step("text", name="s")])
def test_fields_of_a_dropped_column_are_not_advised(step: Document) -> None:
    (message,) = problems(DECODED, step, filter_step("f", "n > 0"), columns=["text"])
    assert "o.n" not in message


def test_unknown_columns_are_not_checked() -> None:
    """The columns are unknown after Python code and for inputs such as Parquet."""
    reads_x = filter_step(expression="x > 0")
    assert problems(python_step(), reads_x, columns=["text"]) == []
    assert problems(reads_x, columns=None) == []
    (problem,) = problems(select_step("label"), filter_step(), columns=None)
    assert problem.startswith("spec.steps[1].filter: ")


@pytest.mark.parametrize(
    ("format_", "fields"),
    [
        ("parquet", {"columns": ["pat"]}),
        ("parquet", {"partitionBy": ["class"]}),
        ("webdataset", {"keyColumn": "id"}),
        ("json", {"columns": ["path"], "partitionBy": ["path"]}),
        ("csv", {"rowNumber": "path"}),
    ],
    ids=["columns", "partitionBy", "keyColumn", "nothing left", "number"],
)
def test_write_column_that_is_missing_or_taken_is_refused(
    format_: str, fields: dict[str, Any], messages: Messages
) -> None:
    messages.check(problems(columns=["image", "path"], **writing(format_, **fields)))


@pytest.mark.parametrize(
    ("format_", "more"),
    [("delta", {}), ("sql", {"url": "sqlite:///out.db", "table": "t"}), ("parquet", {})],
)
def test_names_that_differ_by_case_are_refused_for_tables(format_: str, more: Document) -> None:
    write = {"format": format_, "path": "s3://out/", **more}
    messages = problems(columns=["id", "ID"], write=write)
    assert bool(messages) == (format_ != "parquet")
    assert all("'id' and 'ID'" in message and "renameColumns" in message for message in messages)


def decode_audio(column: str) -> Document:
    return {"name": column, "decode": {"column": column, "format": "audio"}}


def test_sampling_rate_of_an_earlier_step_is_not_replaced(messages: Messages) -> None:
    first, second = decode_audio("a"), decode_audio("b")
    rename = {"name": "rename", "renameColumns": {"sample_rate": "rate_of_a"}}
    for columns in (["a", "b"], None):
        messages.check(problems(first, second, columns=columns))
        assert problems(first, rename, second, columns=columns) == []
    selection = select_step("a", "sample_rate", name="s")
    assert problems(selection, first, columns=["a", "sample_rate"]) == []
