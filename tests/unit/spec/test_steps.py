"""A step has exactly one kind. Only some kinds have a batch size, replicas and resources."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.refusals import READ_OPTIONS, refused
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


@pytest.mark.parametrize("field", POOL_FIELDS)
def test_pool_fields_are_for_models_and_classes(field: str, messages: Messages) -> None:
    for kind in ("model", "python"):
        assert first_step(with_step(**{kind: KINDS[kind], field: POOL_FIELDS[field]})), kind
    for kind in sorted(KINDS.keys() - {"model", "python"}):
        messages.check(refused(with_step(**{kind: KINDS[kind], field: POOL_FIELDS[field]})))


@pytest.mark.parametrize("reuse", [{"dedupe": True}, {"cache": {"path": "s3://bucket/cache"}}])
def test_only_models_reuse_results(reuse: Document, messages: Messages) -> None:
    assert first_step(with_step(model=KINDS["model"], **reuse)).facts.in_actors
    for kind in sorted(KINDS.keys() - {"model"}):
        messages.check(refused(with_step(**{kind: KINDS[kind], **reuse})))


def test_condition_is_for_steps_that_add_columns(messages: Messages) -> None:
    allowed = {"model", "python", "addColumns", "labelFromPath"}
    for kind in allowed:
        facts = first_step(with_step(**{kind: KINDS[kind], "when": "score < 3"})).facts
        assert "score" in facts.reads, kind
    for kind in sorted(KINDS.keys() - allowed):
        messages.check(refused(with_step(**{kind: KINDS[kind], "when": "a < 3"})))
    assert first_step(with_step(decode={**KINDS["decode"], "output": "b"}, when="a is not None"))
    messages.check(refused(with_step(python=KINDS["python"], when="1 < 2")))


CASCADE = {"score": "a", "agree": "a == b", "precision": 0.95}


def test_cascade_is_a_condition(messages: Messages) -> None:
    step = first_step(with_step(model=KINDS["model"], cascade=CASCADE))
    assert step.facts.reads == {"a", *first_step(with_step(model=KINDS["model"])).facts.reads}
    for fields in (
        {"when": "a > 1"},
        {"cascade": {**CASCADE, "precision": 1}},
        {"filter": "a > 1"},
    ):
        kind = {} if "filter" in fields else {"model": KINDS["model"]}
        messages.check(refused(with_step(**{**kind, "cascade": CASCADE, **fields})))


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


def test_columns_of_a_step_are_limited_to_256() -> None:
    assert "at most 256 items" in refused(with_step(selectColumns=["a"] * 257))


def local(batch: object) -> object:
    return batch


@pytest.mark.parametrize(
    "callable_",
    [local, Path, print, lambda batch: batch, "my-steps:f", "a.b-c-d:E.f"],
    ids=["function", "class", "builtin", "lambda", "module", "package"],
)
def test_callable_that_is_not_named_has_a_fix(callable_: object, messages: Messages) -> None:
    messages.check(refused(with_step(python={"callable": callable_})))


def test_callable_of_a_notebook_is_to_be_put_into_a_file(messages: Messages) -> None:
    function = FunctionType(local.__code__, {}, "f")
    function.__module__ = "__main__"
    function.__qualname__ = "f"
    messages.check(refused(with_step(python={"callable": function})))


def test_steps_of_every_kind_follow_every_format() -> None:
    for format_ in READ_OPTIONS:
        read = {"format": format_, "paths": ["in"], "options": {"includePaths": True}}
        steps = [{"name": kind.lower(), kind: value} for kind, value in KINDS.items()]
        assert len(parse(document(read=read, steps=steps)).spec.steps) == len(KINDS)
