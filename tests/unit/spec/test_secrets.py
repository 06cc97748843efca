"""Messages and the stored specification never show values that may contain a secret."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec import SpecError, parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import secret_variables, without_secrets
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import document, model_step, python_step
from support.documents.refusals import refused, refused_at, refused_text, with_value
from support.documents.variations import full_document
from support.tiers import examples

SECRET = "hunter2-hunter2"
SECRET_DATE = dt.date(1999, 9, 9)
ENV = "spec.cluster.env"
PARTS = [
    "spec.cluster.env",
    "spec.cluster.env.0.value",
    "spec.cluster.profiles.XPU.env",
    "spec.steps.3.python.constructorArgs",
    "spec.steps.3.python.callArgs",
    "spec.steps.2.model.factoryArgs",
]
"""The paths of secrets in the document that uses every field."""
INVALID: dict[str, Any] = {
    "text": SECRET,
    "list": [SECRET],
    "deep list": [[{"a": [SECRET]}]],
    "mapping": {"PASSWORD": [SECRET, SECRET_DATE]},
    "items": [{"name": "PASSWORD", "value": [SECRET]}],
    "other items": [{"name": SECRET + " ", "value": {"a": SECRET}}],
    "unknown field": [{"name": "PASSWORD", "valeu": SECRET}],
    "two values": [{"name": "A", "value": SECRET, "valueFrom": {"secretKeyRef": {"key": SECRET}}}],
    "both": [{"name": "A", "value": SECRET, "valueFrom": {}}],
    "bytes": SECRET.encode(),
    "set": {SECRET},
    "tuple": (SECRET, [SECRET]),
    "long": SECRET * 1000,
    "argument": {"password": {SECRET}},
    "deep argument": {"login": {"password": [SECRET_DATE, {"token": SECRET.encode()}]}},
    "key": {7: SECRET},
}


@pytest.mark.parametrize("value", INVALID.values(), ids=INVALID.keys())
def test_secret_in_an_invalid_value_is_not_shown(value: Any) -> None:
    for keys in PARTS:
        try:
            parse(with_value(keys, value))
        except SpecError as error:
            _assert_hidden(str(error))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (SECRET * 1000, f"{len(SECRET) * 1000}. Remove {len(SECRET) * 1000 - 4096} characters"),
        (1234567, "a number (not shown)"),
        (True, "a boolean (not shown)"),
        (SECRET.encode(), "a value of type bytes (not shown)"),
        (SECRET_DATE, "a value of type date (not shown)"),
        ([SECRET], "a list"),
        ({"a": SECRET}, "a mapping"),
    ],
    ids=["text", "number", "boolean", "bytes", "date", "list", "mapping"],
)
def test_secret_is_shown_as_its_type_only(value: Any, shown: str) -> None:
    result = refused_at(f"{ENV}.0.value", value)
    assert result.startswith("spec.cluster.env[0].value: ")
    end = result.partition(f", got {shown}")[2]
    assert end in ("", ". Put it in quotes")
    assert f", got {shown}" in result


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ("env", {"PASSWORD": SECRET}),
        ("spec.env", [{"name": "A", "value": SECRET}]),
        ("spec.steps.3.env", [{"name": "A", "value": SECRET}]),
        ("spec.steps.3.constructorArgs", {"password": SECRET}),
        ("spec.steps.3.python.constructor_args", {"password": SECRET}),
        ("spec.steps.3.python.kwargs", {"password": SECRET}),
        ("spec.steps.1.model.factoryArgs", {"password": SECRET}),
        ("spec.cluster.environment", {"PASSWORD": SECRET}),
    ],
)
def test_secret_in_the_wrong_place_is_not_shown(keys: str, value: Any) -> None:
    result = refused_at(keys, value)
    assert ": unknown field" in result
    _assert_hidden(result)


def test_secret_is_not_shown_if_a_sibling_is_invalid(messages: Messages) -> None:
    both = {"name": "A", "value": SECRET, "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    messages.check(refused_at(ENV, [both]))
    without = {"source": "model.pt", "factoryArgs": {"token": SECRET}}
    model = {"runtime": "torch", "inputs": {"x": "x"}, "output": "y", **without}
    messages.check(refused_at("spec.steps.2.model", model))
    step = {"callable": "m:C", "constructorArgs": {"token": SECRET}}
    _assert_hidden(refused_at("spec.steps.3", {"name": "a", "python": step, "filter": "a > 1"}))
    _assert_hidden(
        refused_at("spec.steps.3", {"name": "a", "python": {**step, "callable": "nonsense"}})
    )


def test_secret_is_not_shown_if_another_section_is_invalid() -> None:
    job = with_value(f"{ENV}.0.value", SECRET)
    job["spec"]["cluster"]["imag"] = "x"
    job["spec"]["cluster"]["volumeMounts"][0]["mountPath"] = "data"
    _assert_hidden(refused(job))


@pytest.mark.parametrize(
    "text",
    [
        f"env: [{{name: A, value: {SECRET}\n",
        f"env:\n- name: A\n  value: '{SECRET}\n",
        f"env:\n- name: A\n  value: @{SECRET}\n",
        f"env:\n- {{name: A, value: {SECRET}, value: {SECRET}}}\n",
        f"env: !!float {SECRET}\n",
        f"env:\n\t- {SECRET}\n",
        f"- {{name: A, value: {SECRET}}}\n",
        f"{SECRET}\n",
        f"--- {SECRET}\n--- {SECRET}\n",
    ],
    ids=["bracket", "quote", "at", "twice", "tag", "tab", "list", "text", "texts"],
)
def test_secret_in_invalid_yaml_is_not_shown(text: str) -> None:
    _assert_hidden(refused_text(text))


@pytest.mark.parametrize("name", ["uri", "dsn", "dbConnection", "connectionString", "cookies"])
def test_secret_is_not_shown_in_a_repaired_line(name: str) -> None:
    _assert_hidden(refused_text(f"read: {{{name}: {SECRET}\n"))


@given(
    st.sampled_from(PARTS),
    st.recursive(
        st.just(SECRET) | st.just(SECRET.encode()) | st.just(SECRET_DATE),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    ),
)
@settings(max_examples=examples(300), deadline=None)
def test_secret_in_any_structure_is_not_shown(keys: str, value: Any) -> None:
    try:
        parse(with_value(keys, value, full_document()))
    except SpecError as error:
        _assert_hidden(str(error))


def _assert_hidden(message: str) -> None:
    assert message
    assert "hunter2" not in message
    assert "1999" not in message


def test_variables_with_secrets_are_those_that_the_specification_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("S_KEY", "C_KEY"):
        monkeypatch.setenv(name, "value")
    sources = [{"prefix": "S_", "secretRef": {"name": "s"}}, {"secretRef": {"name": "s"}},
               {"prefix": "C_", "configMapRef": {"name": "c"}}]  # fmt: skip
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    profile = {"env": [{"name": "OF_PROFILE", "valueFrom": source}], "resource": "a.b/c"}
    env = [{"name": "OF_CLUSTER", "valueFrom": source}, {"name": "OPEN", "value": "x"}]
    model = chat(apiKeyEnv="KEY", headersFrom={"X-Own": "HEADER"})
    store = {"format": "qdrant", "collection": "c", "key": ["id"], "vectorColumn": "e"}
    spec = parse(
        document(
            read={"format": "sql", "urlEnv": "OF_READ", "query": "SELECT 1"},
            steps=[{"name": "ask", "model": model}],
            write={**store, "urlEnv": "OF_WRITE", "apiKeyEnv": "OF_WRITE_KEY", "path": "/out"},
            cluster={"env": env, "profiles": {"XPU": profile}, "envFrom": sources},
        )
    ).spec
    of_cluster = ("OF_CLUSTER", "OF_PROFILE", "OF_READ", "OF_WRITE", "OF_WRITE_KEY", "S_KEY")
    assert secret_variables(spec).names == ("HEADER", "KEY", *of_cluster)


def test_specification_without_secrets_is_stored_unchanged() -> None:
    job = document(steps=[model_step(batchSize=8)])
    assert without_secrets(parse(job).spec) == job["spec"]


def test_specification_is_valid_after_redaction() -> None:
    expected = full_document()["spec"]
    shown = without_secrets(parse(full_document()).spec)
    assert without_secrets(BatchInferenceSpec.model_validate(shown)) == shown
    del expected["cluster"]
    expected["parameters"] = [
        {field: one[field] for field in ("name", "type", "value") if field in one}
        for one in expected["parameters"]
    ]
    for step in expected["steps"]:
        for name in ("constructorArgs", "callArgs", "factoryArgs"):
            step.get("python", {}).pop(name, None)
            step.get("model", {}).pop(name, None)
    assert shown == expected


def test_specification_holds_no_secret_after_redaction() -> None:
    torch = {"runtime": "torch", "factory": "own:build", "factoryArgs": {"token": SECRET},
             "inputs": {"x": "x"}, "output": "y"}  # fmt: skip
    own = python_step("own")
    own["python"] |= {"constructorArgs": {"key": [SECRET]}, "callArgs": {"login": {"a": SECRET}}}
    env = [{"name": "PASSWORD", "value": SECRET}]
    steps = [{"name": "torch", "model": torch}, own]
    shown = without_secrets(parse(document(steps=steps, cluster={"env": env})).spec)
    assert [step["name"] for step in shown["steps"]] == ["torch", "own"]
    assert SECRET not in str(shown)
