"""A step has exactly one kind. Only some kinds have a batch size, replicas and resources."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import yaml

from batchinference.spec import parse
from batchinference.spec.steps import Replicas, Step
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.refusals import READ_OPTIONS, refused, short
from support.documents.variations import REMOVED

KINDS: dict[str, Any] = {
    "model": model_step()["model"],
    "python": python_step()["python"],
    "filter": "score >= 0.5",
    "addColumns": {"c": "a + 1"},
    "decode": {"column": "a", "format": "image"},
    "labelFromPath": {"column": "class", "index": -2},
    "selectColumns": ["a", "b"],
    "dropColumns": ["a"],
    "renameColumns": {"a": "b"},
    "explode": {"column": "a"},
    "chunk": {"column": "a", "size": 100},
}
"""The kinds of steps, and a valid example of each."""
POOL_FIELDS: dict[str, Any] = {"batchSize": 8, "replicas": {"max": 2}, "resources": {"cpu": 2}}
STEP = "spec.steps[0]"
BATCH_SIZE = ".batchSize: expected a whole number from 1 to 1000000, or 'auto', got"


def with_step(**fields: Any) -> Document:
    """Return a document with one step."""
    read = {"format": "text", "paths": ["in"], "options": {"includePaths": True}}
    return document(read=read, steps=[without_removed({"name": "step", **fields})])


def without_removed(fields: Document) -> Document:
    return {name: value for name, value in fields.items() if value is not REMOVED}


def first_step(job: Document) -> Step:
    return parse(job).spec.steps[0]


def test_step_has_the_kind_of_its_field() -> None:
    assert [Step.model_fields[kind].alias for kind in Step.kinds()] == list(KINDS)
    kinds = [first_step(with_step(**{kind: value})).kind for kind, value in KINDS.items()]
    assert [Step.model_fields[kind].alias for kind in kinds] == list(KINDS)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([], f"no action. Add one of {', '.join(KINDS)}"),
        (
            ["filter", "dropColumns"],
            "filter and dropColumns, but a step has one action. Move dropColumns to another step",
        ),
        (
            ["model", "python", "filter"],
            "model and python and filter, but a step has one action. Move python and filter to "
            "another step",
        ),
    ],
)
def test_step_requires_exactly_one_kind(held: list[str], message: str) -> None:
    found = refused(with_step(**{kind: KINDS[kind] for kind in held}))
    assert found == f"{STEP}: step 'step' has {message}"


@pytest.mark.parametrize("field", POOL_FIELDS)
def test_pool_fields_are_for_models_and_classes(field: str) -> None:
    for kind in ("model", "python"):
        assert first_step(with_step(**{kind: KINDS[kind], field: POOL_FIELDS[field]})), kind
    for kind in KINDS.keys() - {"model", "python"}:
        message = refused(with_step(**{kind: KINDS[kind], field: POOL_FIELDS[field]}))
        assert message == f"{STEP}: '{field}' does not apply to a {kind} step. Remove it"


@pytest.mark.parametrize(
    ("callable_", "is_class"),
    [
        ("module:Class", True),
        ("package.module:Outer.Inner", True),
        ("module:_Private", True),
        ("module:URL", True),
        ("module:Class.make", False),
        ("module:function", False),
        ("module:_function", False),
        ("module:__call__", False),
        ("Module:function", False),
    ],
)
def test_callable_in_capwords_is_a_class(callable_: str, is_class: bool) -> None:
    assert first_step(with_step(python={"callable": callable_})).python.is_class is is_class


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"replicas": {"max": 2}}, "replicas"),
        ({"replicas": {}}, "replicas"),
        ({"resources": {"gpu": 1}}, "gpu"),
        ({"resources": {"memory": "1Gi"}}, "memory"),
        ({"resources": {"gpu": 1}, "replicas": {"max": 2}}, "replicas"),
    ],
)
def test_function_with_replicas_is_refused(fields: Document, field: str) -> None:
    assert refused(with_step(python={"callable": "module:function"}, **fields)) == (
        f"{STEP}: '{field}' is for a class, and 'module:function' is a function, which runs "
        "wherever a CPU is free (a class has a name in CapWords)"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 1}, ".size: expected at least 2, got 1"),
        ({"overlap": 51}, ": overlap is more than half of size (51 of 100)"),
        ({"unit": "tokens"}, ": unit tokens needs a 'tokenizer'"),
        ({"tokenizer": "org/model"}, ": unit tokens needs a 'tokenizer'"),
        ({"revision": "v1"}, ": unit tokens needs a 'tokenizer'"),
        (
            {"unit": "tokens", "tokenizer": "./model", "revision": "v1"},
            ": 'revision' is for models",
        ),
        ({"column": "chunk_start"}, ": column: the step adds chunk_index, chunk_start"),
    ],
)
def test_chunk_is_refused(fields: Document, message: str) -> None:
    found = refused(with_step(chunk={**KINDS["chunk"], **fields}))
    assert found.startswith(f"{STEP}.chunk{message}")


def test_batch_size_and_cpus_without_replicas_are_accepted() -> None:
    function = {"callable": "module:function", "callArgs": {"top": 3}}
    assert first_step(with_step(batchSize=8, python=function, resources={"cpu": 2, "gpu": 0}))


def test_replicas_and_resources_have_defaults() -> None:
    step = first_step(with_step(python=KINDS["python"], replicas={}, resources={}))
    assert step.replicas == Replicas(min=1, max=1)
    assert step.resources
    assert (step.resources.cpu, step.resources.gpu, step.resources.memory) == (1.0, 0, None)


@pytest.mark.parametrize("index", [-100, -2, 0, 100])
def test_label_index_is_accepted(index: int) -> None:
    label = first_step(with_step(labelFromPath={"column": "class", "index": index})).label_from_path
    assert label
    assert label.index == index


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Step"}, ".name: expected lower-case letters, digits and '-', beginning with"),
        ({"name": "s" * 41}, ".name: expected at most 40 characters, got 41"),
        ({"name": REMOVED}, ".name: required, but missing"),
        ({"name": False}, ".name: expected a text, got false"),
        ({"batchSize": 0}, f"{BATCH_SIZE} 0"),
        ({"batchSize": 1000001}, BATCH_SIZE),
        ({"batchSize": 8.0}, f"{BATCH_SIZE} 8.0"),
        ({"batchSize": "most"}, BATCH_SIZE),
        ({"batch_size": 8}, ".batch_size: unknown field; did you mean 'batchSize'?"),
        ({"replicas": 2}, ".replicas: expected a mapping, got 2"),
        ({"replicas": {"min": 0}}, ".replicas.min: expected at least 1"),
        ({"replicas": {"max": 10001}},
         ".replicas.max: expected at most 10000"),
        ({"replicas": {"min": 3, "max": 2}}, ".replicas: min (3) is above max (2)"),
        ({"replicas": {"min": 3}}, ".replicas: min (3) is above max (1)"),
        ({"resources": {"memory": "8gb"}},
         ".resources.memory: expected a quantity of memory such as 512Mi or 8Gi, got '8gb'"),
    ],
    ids=short,
)  # fmt: skip
def test_field_of_a_step_is_refused(fields: Document, message: str) -> None:
    job = with_step(**{"python": KINDS["python"], **fields})
    assert refused(job).startswith(STEP + message)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("labelFromPath", {"column": "c"}, ".index: required, but missing"),
        ("labelFromPath", {"column": "", "index": 1}, ".column: expected at least 1"),
        ("labelFromPath", {"column": "c", "index": "1"}, ".index: expected a whole number"),
        ("labelFromPath", {"column": "c", "index": 101}, ".index: expected at most 100"),
        ("labelFromPath", {"column": "c", "index": -101}, ".index: expected at least"),
        ("labelFromPath", "class", ": expected a mapping, got 'class'"),
        ("selectColumns", [], ": expected at least 1 item, got 0"),
        ("selectColumns", ["a"] * 257, ": expected at most 256 items, got 257"),
        ("dropColumns", ["c" * 129], "[0]: expected at most 128 characters, got 129"),
        ("filter", "print(a)",
         ": unknown function 'print', got 'print(a)'. Use one of col, len, lower, upper"),
    ],
    ids=short,
)  # fmt: skip
def test_value_of_a_step_kind_is_refused(kind: str, value: Any, message: str) -> None:
    assert refused(with_step(**{kind: value})).startswith(f"{STEP}.{kind}{message}")


@pytest.mark.parametrize(
    ("flow", "advice"),
    [
        ("{p: matches(n, 2), q: n}", "is also wrong: the last argument of matches()"),
        ("{p: round(n, 2)}", "is also wrong: unknown function 'round'"),
        ("{p: n in (1, 2)}", 'Write the expression in quotes: p: "n in (1, 2)"'),
        ("{p: n in (1, 2, 3), q: n}", 'Write the expression in quotes: p: "n in (1, 2, 3)"'),
    ],
)
def test_expression_that_yaml_divides_at_a_comma_is_refused(flow: str, advice: str) -> None:
    message = refused(with_step(addColumns=yaml.safe_load(flow)))
    assert message.startswith(f"{STEP}.addColumns: in {{...}}, a comma ends a value")
    assert advice in message


def test_null_expression_is_no_divided_one() -> None:
    message = refused(with_step(addColumns={"a": "len(b)", "c": None}))
    assert message == f"{STEP}.addColumns.c: expected a text, got null"


def local(batch: object) -> object:
    return batch


@pytest.mark.parametrize(
    ("callable_", "fix"),
    [
        (local, f". Write '{__name__}:local'"),
        (Path, f". Write '{Path.__module__}:Path'"),
        (print, ". Put it into a file such as steps.py, and write 'steps:print'"),
        (lambda batch: batch, ". Put a function into a file such as steps.py, and write 'st"),
        ("my-steps:f", ". A module cannot have '-' in its name: rename it, and write my_steps:f"),
        ("a.b-c-d:E.f", ". A module cannot have '-' in its name: rename it, and write a.b_c_d:E.f"),
    ],
    ids=["function", "class", "builtin", "lambda", "module", "package"],
)
def test_callable_that_is_not_named_has_a_fix(callable_: object, fix: str) -> None:
    assert fix in refused(with_step(python={"callable": callable_}))


def test_callable_of_a_notebook_is_to_be_put_into_a_file() -> None:
    function = FunctionType(local.__code__, {}, "f")
    function.__module__ = "__main__"
    function.__qualname__ = "f"
    message = refused(with_step(python={"callable": function}))
    assert message.endswith(". Put it into a file such as steps.py, and write 'steps:f'")


@pytest.mark.parametrize(
    "callable_",
    [
        *("module", "module.Class", ":Class", "module:", "m::C", "m/n:C", "-m:C", "a b:C", ""),
        *("a..b:C", "a.:C", ".a:C", "1:C", "m:C.", "m:C()", "m:1", "m:C\n", "modül:C"),
    ],
)
def test_callable_is_refused(callable_: str) -> None:
    message = f"expected a callable written as module:name, got {callable_!r}"
    assert (
        refused(with_step(python={"callable": callable_})) == f"{STEP}.python.callable: {message}"
    )


@pytest.mark.parametrize("value", [None, [], "filter", 7])
def test_step_must_be_a_mapping(value: Any) -> None:
    assert refused(document(steps=[value])).startswith(f"{STEP}: expected a mapping, got ")


def test_step_number_is_in_the_path_of_a_message() -> None:
    steps = [{"name": f"s{number}", "filter": "a > 1"} for number in range(3)]
    steps[2]["filter"] = "a >"
    assert refused(document(steps=steps)).startswith("spec.steps[2].filter: not an expression: ")


def test_steps_of_every_kind_follow_every_format() -> None:
    for format_ in READ_OPTIONS:
        read = {"format": format_, "paths": ["in"], "options": {"includePaths": True}}
        steps = [{"name": kind.lower(), kind: value} for kind, value in KINDS.items()]
        assert len(parse(document(read=read, steps=steps)).spec.steps) == len(KINDS)


@pytest.mark.parametrize("encoding", ["hex", "rot13", "undefined", "idna", "none", "a\0"])
def test_encodings_that_are_not_for_text_are_refused(encoding: str) -> None:
    decode = {"column": "a", "format": "text", "encoding": encoding}
    message = refused(with_step(decode=decode))
    assert f"encoding: Python knows no such encoding of text, got {encoding!r}. Use" in message


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1", "cp037", "shift_jis"])
def test_encodings_of_text_are_accepted(encoding: str) -> None:
    decode = {"column": "a", "format": "text", "encoding": encoding}
    assert parse(with_step(decode=decode))


@pytest.mark.parametrize(
    "columns", [{"column": "a", "output": "sample_rate"}, {"column": "sample_rate"}]
)
def test_decoded_audio_needs_another_column_than_its_sampling_rate(columns: Document) -> None:
    message = refused(with_step(decode={**columns, "format": "audio"}))
    assert "output: the sampling rate would replace the audio (sample_rate). Set output" in message
