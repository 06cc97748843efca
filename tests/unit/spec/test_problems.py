"""Error messages contain the path, the actual value and the expected value."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from batchinference.spec import Problem, SpecError, parse
from batchinference.spec.cluster import Cluster
from batchinference.spec.read import ReadImages
from batchinference.spec.validation_messages import problems_of
from plugins.messages import Messages
from support.documents.minimal import document, model_step, python_step
from support.documents.refusals import refused, refused_at, short
from support.documents.v1alpha1 import as_v1alpha1, converted

QUOTES = "Put it in quotes"


def test_problems_are_reported_one_a_line(messages: Messages) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document(read={"format": "text"}, write={"format": "json"}, error={}))
    messages.check(str(caught.value).splitlines())
    messages.check([str(problem) for problem in caught.value.problems])
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["spec.read.paths", "spec.write.path", "spec.error"]


@pytest.mark.parametrize(
    ("step", "path"),
    [
        ({"renameColumns": {"x": "f(b", "c)": None}}, "renameColumns.c)"),
        ({"model": {"source": "x", "inputs": {"text": "f(a", "b)": None}}}, "model.runtime"),
        ({"python": {"method": "map", "callable)": None}}, "python.callable"),
        ({"python": {"callable": "f(a", "b)": None}}, "python.callable"),
    ],
)
def test_rest_of_a_call_is_reported_if_no_other_error_tells_of_it(
    step: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(document(steps=[{"name": "a", **step}]))
    assert [problem.path for problem in caught.value.problems] == [f"spec.steps[0].{path}"]


def test_path_of_a_problem_keeps_dots_and_slashes_of_a_key() -> None:
    result = refused_at("spec.cluster.nodeSelector", {"a.b/c": None})
    assert result.split(": ")[0] == "spec.cluster.nodeSelector.a.b/c"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (-0.5, "-0.5"),
        ([], "a list"),
        ([1, 2], "a list"),
        ({}, "a mapping"),
        ({"a": "b"}, "a mapping"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (b"ab", "b'ab'"),
        (10**4000, "1" + "0" * 59 + "..."),
    ],
    ids=short,
)
def test_value_in_a_message(value: Any, shown: str) -> None:
    result = refused_at("spec.write.path", value)
    assert result.startswith(f"spec.write.path: expected a text, got {shown}")
    scalar = isinstance(value, int | float | dt.date) and not isinstance(value, bool)
    assert result.endswith(QUOTES) is scalar


def test_value_in_a_message_is_truncated(messages: Messages) -> None:
    result = refused_at("spec.read.options.mode", "R" * 100_000)
    messages.check(result)
    assert len(result) < 150
    assert len(refused_at("spec.steps.4.name", "N" * 100_000)) < 200


def test_value_of_exponential_size_is_not_expanded(messages: Messages) -> None:
    level: Any = "x"
    for _ in range(40):
        level = [level, level]  # 2**40 strings if expanded
    messages.check(refused_at("spec.read", level))
    for field in ("suspend", "errors.maxRows", "cluster.queueName", "ttl", "write.path"):
        assert len(refused_at(f"spec.{field}", level)) < 1000


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("with space", "with space"),
        ("ключ", "ключ"),
        ("\x1b[2J", "'\\x1b[2J'"),
        ("two\nlines", "'two\\nlines'"),
        ("", ""),
        ("k" * 100, "k" * 60 + "..."),
        ("\0" * 100, ("'" + "\\x00" * 15)[:60] + "..."),
    ],
    ids=["space", "cyrillic", "escape", "newline", "empty", "long", "long escape"],
)
def test_unknown_key_is_escaped_and_truncated(key: str, shown: str) -> None:
    wrong = document()
    wrong["spec"][key] = 1
    assert refused(wrong).startswith(f"spec.{shown}: unknown field. Use one of read, steps")


@pytest.mark.parametrize(
    ("key", "shown", "got"),
    [(1, "1", "1"), (True, "True", "true"), (None, "None", "null"), (1.5, "1.5", "1.5")],
    ids=str,
)
def test_key_must_be_a_string(key: Any, shown: str, got: str) -> None:
    wrong = document()
    wrong["spec"]["read"][key] = "x"
    assert refused(wrong) == f"spec.read.{shown}: as a key: Keys should be strings, got {got}"


def test_key_may_resemble_the_marker_of_pydantic(messages: Messages) -> None:
    messages.check(refused_at("spec.steps.1.model.inputs", {"[key]": 7}))
    assert refused({**document(), "[key]": 7}).startswith("[key]: unknown field. Use one of ")


@pytest.mark.parametrize(
    ("model", "value", "problem"),
    [
        (Cluster, {"imag": "a"}, Problem("imag", "unknown field; did you mean 'image'?")),
        (Cluster, [], Problem("", "expected a mapping, got a list")),
        (
            ReadImages,
            {"format": "images"},
            Problem("paths", "required, but missing. Add paths: [./data]"),
        ),
    ],
    ids=short,
)
def test_problems_of_a_nested_model(model: type[BaseModel], value: Any, problem: Problem) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    assert list(problems_of(caught.value, model)) == [problem]


def test_recursive_document_is_refused() -> None:
    loop = document()
    loop["spec"]["read"]["options"] = loop
    assert "spec.read.options.apiVersion: unknown option" in refused(loop)
    loop["spec"]["read"] = loop["spec"]
    assert "spec.read.format: required, but missing" in refused(loop)


ADDRESSES = ("https://user:canary@host/x.csv", "https://h/x.csv?sig=canary", "s3://k:canary@b/x",
             f"postgresql://u:canary{'x' * 50}@h/d", "Password=canary")  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES, ids=short)
def test_credentials_in_a_value_of_any_field_are_masked(address: str) -> None:
    for given in (
        document(read={"format": "text", "paths": [address]}),
        document(read={"format": address, "paths": ["in"]}),
        document(read={"format": "text", "paths": ["in"], "options": {address: 1}}),
        document(write={"format": "parquet", "path": address}),
        document(parameters=[{"name": address}]),
        document(cluster={"queueName": address, "nodeSelector": {address: "a b"}}),
        document(cluster={"env": [{"name": address, "value": "a"}]}),
        document(steps=[python_step(callable=address)]),
        document(steps=[model_step(runtime=address)]),
        document(**{address: 1}),
    ):
        with pytest.raises(SpecError) as caught:
            parse({**given, "spec": {**given["spec"], "unknown": 1}})
        assert "canary" not in str(caught.value), given


def test_messages_about_old_fields_convert_a_document() -> None:
    new = document(
        read={"format": "text", "paths": ["in"], "options": {"includePaths": True}},
        errors={"retryFailedRows": False},
        retry={"onCause": {"NodeLost": "Fail"}},
        cluster={
            "queueName": "a",
            "limits": {"devices": 1},
            "volumes": [{"name": "code", "configMap": {"name": "code"}}],
            "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        },
    )
    old = as_v1alpha1(new)
    spec = old["spec"]
    spec["read"]["options"] = {"include_paths": True}
    spec["errors"] = {"retry": False}
    spec["retry"] = {"onCause": {"NodeLost": "fail"}}
    spec["cluster"] |= {"queue": spec["cluster"].pop("queueName"), "limits": {"gpu": 1}}
    assert converted(old) == new
