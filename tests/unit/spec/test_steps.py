"""A step does one thing; batches, replicas and resources are for those that compute."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.steps import Step
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.refusals import READ_OPTIONS, refused, short
from support.documents.variations import REMOVED

KINDS: dict[str, Any] = {
    "model": model_step()["model"],
    "python": python_step()["python"],
    "filter": "score >= 0.5",
    "labelFromPath": {"column": "class", "index": -2},
    "selectColumns": ["a", "b"],
    "dropColumns": ["a"],
    "renameColumns": {"a": "b"},
    "explode": {"column": "a"},
    "repartition": {"rowsPerBlock": 100},
    "nearest": {"path": "s3://out/index/", "column": "a", "output": "b"},
}
"""What a step may hold, and a valid example of each."""
FOR_POOLS: dict[str, Any] = {"batchSize": 8, "replicas": {"max": 2}, "resources": {"cpu": 2}}
POOLED = ["model", "python"]
PLAIN = [kind for kind in KINDS if kind not in [*POOLED, "nearest"]]
STEP = "spec.steps[0]"


def one(**fields: Any) -> Document:
    """A document with one step."""
    step = {"name": "step", **fields}
    kept = {name: value for name, value in step.items() if value is not REMOVED}
    read = {"format": "text", "paths": ["in"], "options": {"include_paths": True}}
    return document(read=read, steps=[kept])


def only(job: Document) -> Step:
    return parse(job).spec.steps[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_knows_its_kind(kind: str) -> None:
    step = only(one(**{kind: KINDS[kind]}))
    assert Step.model_fields[step.kind].alias == kind


def test_every_kind_is_here() -> None:
    assert [Step.model_fields[kind].alias for kind in Step.KINDS] == list(KINDS)


@pytest.mark.parametrize(
    ("held", "given"),
    [
        ([], "none of them"),
        (["filter", "dropColumns"], "filter and dropColumns"),
        (["model", "python", "filter"], "model and python and filter"),
    ],
)
def test_a_step_does_exactly_one_thing(held: list[str], given: str) -> None:
    assert refused(one(**{kind: KINDS[kind] for kind in held})) == (
        f"{STEP}: a step holds exactly one of {', '.join(KINDS)}; this one holds {given}"
    )


@pytest.mark.parametrize("kind", POOLED)
@pytest.mark.parametrize("field", FOR_POOLS)
def test_a_model_and_a_class_run_in_replicas(kind: str, field: str) -> None:
    assert only(one(**{kind: KINDS[kind], field: FOR_POOLS[field]}))


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("field", FOR_POOLS)
def test_other_steps_have_no_replicas(kind: str, field: str) -> None:
    message = refused(one(**{kind: KINDS[kind], field: FOR_POOLS[field]}))
    assert message == f"{STEP}: '{field}' is for model and python steps, not for {kind}"


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
def test_a_name_in_capwords_is_a_class(callable_: str, is_class: bool) -> None:
    assert only(one(python={"callable": callable_})).python.is_class is is_class


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
def test_a_function_has_no_replicas(fields: Document, field: str) -> None:
    assert refused(one(python={"callable": "module:function"}, **fields)) == (
        f"{STEP}: '{field}' is for a class, and 'module:function' is a function, which runs "
        "wherever a CPU is free (a class has a name in CapWords)"
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"replicas": {"max": 2}}, "replicas"),
        ({"resources": {"gpu": 1}}, "gpu"),
        ({"resources": {"memory": "1Gi"}}, "memory"),
    ],
)
def test_nearest_has_no_replicas(fields: Document, field: str) -> None:
    assert refused(one(nearest=KINDS["nearest"], **fields)) == (
        f"{STEP}: '{field}' is for a class, and a nearest step runs wherever a CPU is free"
    )


def test_nearest_has_batches_and_cpus() -> None:
    assert only(one(nearest=KINDS["nearest"], batchSize=8, resources={"cpu": 2}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"k": 0}, ".k: Input should be greater than or equal to 1, got 0"),
        ({"k": 1001}, ".k: Input should be less than or equal to 1000, got 1001"),
        ({"column": REMOVED}, ".column: required, but missing"),
        ({"path": "ftp://a/b"}, ".path: the scheme 'ftp://' is not supported"),
        ({"columns": []}, ".columns: List should have at least 1 item"),
        ({"columns": ["a", "similarity"]}, ": 'similarity' is what a match is told by itself"),
    ],
)
def test_invalid_search_is_refused(fields: Document, message: str) -> None:
    held = {**KINDS["nearest"], **fields}
    nearest = {name: value for name, value in held.items() if value is not REMOVED}
    assert refused(one(nearest=nearest)).startswith(f"{STEP}.nearest{message}")


def test_a_function_has_batches_and_cpus() -> None:
    resources = {"cpu": 2, "gpu": 0}
    function = {"callable": "module:function", "callArgs": {"top": 3}}
    assert only(one(python=function, batchSize=8, resources=resources))


def test_default_resources_of_a_replica() -> None:
    step = only(one(python=KINDS["python"], replicas={}, resources={}))
    assert step.replicas
    assert (step.replicas.min, step.replicas.max) == (1, 1)
    assert step.resources
    assert (step.resources.cpu, step.resources.gpu, step.resources.memory) == (1.0, 0, None)


@pytest.mark.parametrize("index", [-100, -2, 0, 100])
def test_any_part_of_a_path_can_be_a_label(index: int) -> None:
    label = only(one(labelFromPath={"column": "class", "index": index})).label_from_path
    assert label
    assert label.index == index


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Step"}, ".name: expected lower-case letters, digits and '-', beginning with"),
        ({"name": "s" * 41}, ".name: String should have at most 40 characters, got 'sss"),
        ({"name": REMOVED}, ".name: required, but missing"),
        ({"name": False}, ".name: Input should be a valid string, got false"),
        ({"batchSize": 0}, ".batchSize: a whole number from 1 to 1000000, or 'auto', got 0"),
        ({"batchSize": 1000001}, ".batchSize: a whole number from 1 to 1000000, or 'auto', got"),
        ({"batchSize": 8.0}, ".batchSize: a whole number from 1 to 1000000, or 'auto', got 8.0"),
        ({"batchSize": "most"}, ".batchSize: a whole number from 1 to 1000000, or 'auto', got "),
        ({"batch_size": 8}, ".batch_size: unknown field; did you mean 'batchSize'?"),
        ({"replicas": 2}, ".replicas: expected a mapping, got 2"),
        ({"replicas": {"min": 0}}, ".replicas.min: Input should be greater than or equal to 1"),
        (
            {"replicas": {"max": 10001}},
            ".replicas.max: Input should be less than or equal to 10000",
        ),
        ({"replicas": {"min": 3, "max": 2}}, ".replicas: min (3) is above max (2)"),
        ({"replicas": {"min": 3}}, ".replicas: min (3) is above max (1)"),
        ({"replicas": {"count": 3}}, ".replicas.count: unknown field; there are min, max"),
        ({"resources": {"cpu": 0}}, ".resources.cpu: Input should be greater than 0, got 0"),
        (
            {"resources": {"cpu": 1025}},
            ".resources.cpu: Input should be less than or equal to 1024",
        ),
        ({"resources": {"cpu": "500m"}}, ".resources.cpu: Input should be a valid number, got '50"),
        ({"resources": {"cpu": True}}, ".resources.cpu: Input should be a valid number, got true"),
        ({"resources": {"gpu": 0.5}}, ".resources.gpu: Input should be a valid integer, got 0.5"),
        ({"resources": {"gpu": 65}}, ".resources.gpu: Input should be less than or equal to 64"),
        ({"resources": {"gpu": -1}}, ".resources.gpu: Input should be greater than or equal to 0"),
        (
            {"resources": {"memory": "8gb"}},
            ".resources.memory: expected a quantity of memory such as 512Mi or 8Gi, got '8gb'",
        ),
        (
            {"resources": {"memory": 8}},
            ".resources.memory: Input should be a valid string, got 8",
        ),
        ({"resources": {"gpus": 1}}, ".resources.gpus: unknown field; did you mean 'gpu'?"),
        ({"python": "module:Class"}, ".python: expected a mapping, got 'module:Class'"),
        ({"python": {}}, ".python.callable: required, but missing"),
        ({"modle": {}}, ".modle: unknown field; did you mean 'model'?"),
        ({"env": []}, ".env: unknown field; there are name, model, python, filter, labelFromPath"),
    ],
    ids=short,
)
def test_the_fields_of_a_step(fields: Document, message: str) -> None:
    job = one(**{"python": KINDS["python"], **fields})
    assert refused(job).startswith(STEP + message)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("labelFromPath", {"column": "c"}, ".index: required, but missing"),
        ("labelFromPath", {"index": 1}, ".column: required, but missing"),
        ("labelFromPath", {"column": "", "index": 1}, ".column: String should have at least 1"),
        ("labelFromPath", {"column": "c", "index": "1"}, ".index: Input should be a valid integer"),
        (
            "labelFromPath",
            {"column": "c", "index": True},
            ".index: Input should be a valid integer",
        ),
        ("labelFromPath", {"column": "c", "index": 101}, ".index: Input should be less than or"),
        ("labelFromPath", {"column": "c", "index": -101}, ".index: Input should be greater than"),
        ("labelFromPath", "class", ": expected a mapping, got 'class'"),
        ("selectColumns", [], ": List should have at least 1 item after validation, not 0"),
        ("selectColumns", "a", ": Input should be a valid list, got 'a'"),
        ("selectColumns", ["a", ""], "[1]: String should have at least 1 character, got ''"),
        ("selectColumns", ["a"] * 257, ": List should have at most 256 items after validation"),
        ("dropColumns", [None], "[0]: Input should be a valid string, got null"),
        ("dropColumns", ["c" * 129], "[0]: String should have at most 128 characters, got 'ccc"),
        ("filter", "", ": String should have at least 1 character, got ''"),
        ("filter", True, ": Input should be a valid string, got true"),
        ("filter", "a > 1 " * 400, ": String should have at most 2048 characters, got 'a > 1 a"),
        ("filter", "print(a)", ": unknown function 'print'; there are col, len, lower, upper"),
    ],
    ids=short,
)
def test_steps_without_replicas(kind: str, value: Any, message: str) -> None:
    assert refused(one(**{kind: value})).startswith(f"{STEP}.{kind}{message}")


@pytest.mark.parametrize(
    "callable_",
    [
        *("module", "module.Class", ":Class", "module:", "m::C", "m/n:C", "-m:C", "a b:C", ""),
        *("a..b:C", "a.:C", ".a:C", "1:C", "m:C.", "m:C()", "m:1", "m:C\n", "modül:C"),
    ],
)
def test_invalid_callable_is_refused(callable_: str) -> None:
    message = f"expected a callable written as module:name, got {callable_!r}"
    assert refused(one(python={"callable": callable_})) == f"{STEP}.python.callable: {message}"


@pytest.mark.parametrize("value", [None, [], "filter", 7])
def test_a_step_is_a_mapping(value: Any) -> None:
    assert refused(document(steps=[value])).startswith(f"{STEP}: expected a mapping, got ")


def test_the_number_of_the_step_is_in_the_path() -> None:
    steps = [{"name": f"s{number}", "filter": "a > 1"} for number in range(3)]
    steps[2]["filter"] = "a >"
    assert refused(document(steps=steps)).startswith("spec.steps[2].filter: not an expression: ")


def test_every_format_feeds_every_kind_of_step() -> None:
    for format_ in READ_OPTIONS:
        read = {"format": format_, "paths": ["in"], "options": {"include_paths": True}}
        steps = [{"name": kind.lower(), kind: value} for kind, value in KINDS.items()]
        assert len(parse(document(read=read, steps=steps)).spec.steps) == len(KINDS)
