"""Parameters: references are replaced by values before the job is validated."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.pipeline.commit.output_paths import work_of
from batchinference.rendering.config_map import job_file
from batchinference.spec import SpecError, parse, parse_one
from batchinference.spec.parameters import ParameterValues
from plugins.messages import Messages
from support.documents.minimal import Document, document, python_step

DATE: Document = {"name": "date", "value": "2026-01-31", "description": "the day to process"}


def job(*parameters: Document, **spec: Any) -> Document:
    return document(**{"parameters": list(parameters), **spec})


def parsed(path: str, *parameters: Document, **values: str) -> str:
    """Return the output path of a job with this path and these values given."""
    body = job(*parameters, write={"format": "parquet", "path": path})
    return parse(body, ParameterValues(given=values)).spec.write.path


def refused(body: Document, **values: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(body, ParameterValues(given=values))
    return str(caught.value).splitlines()


def test_value_is_taken_from_the_command_line_then_the_environment_then_the_file() -> None:
    path = "s3://out/{{ params.date }}/{{params.date}}"
    assert parsed(path, DATE) == "s3://out/2026-01-31/2026-01-31"
    assert parsed(path, DATE, date="today") == "s3://out/today/today"
    environment = {"BATCHINFERENCE_PARAM_DATE": "env", "BATCHINFERENCE_PARAM_OTHER": "x"}
    body = job(DATE, write={"format": "parquet", "path": path})
    from_environment = parse(body, ParameterValues(environment=environment))
    assert from_environment.spec.write.path == "s3://out/env/env"
    both = parse(body, ParameterValues({"date": "set"}, environment))
    assert both.spec.write.path == "s3://out/set/set"


def test_the_driver_gets_the_values_of_parameters_for_the_history_only() -> None:
    write = {"format": "parquet", "path": "s3://out/{{ params.date }}"}
    resolved = parse(job(DATE, write=write), ParameterValues({"date": "today"}))
    plain = parse(document(write={"format": "parquet", "path": "s3://out/today"}))
    assert work_of(resolved.spec) == work_of(plain.spec)
    assert [(one.name, one.value) for one in resolved.spec.parameters] == [("date", "today")]
    file = job_file(resolved, "uid")
    assert "params." not in file
    assert parse_one(file.replace("  uid: uid\n", "")).spec == resolved.spec
    assert "parameters" not in job_file(plain, "uid")


def test_values_that_arguments_of_user_code_have_are_not_kept() -> None:
    step = python_step()
    step["python"]["callArgs"] = {"login": ["{{ params.token }}"]}
    made = parse(job(DATE, {"name": "token", "value": "s3cret"}, steps=[step]))
    kept = {one.name: one.value for one in made.spec.parameters}
    assert kept == {"date": "2026-01-31", "token": None}


def test_only_a_text_with_a_single_reference_becomes_a_number() -> None:
    size = {"name": "size", "type": "number", "value": "16"}
    ratio = {"name": "ratio", "type": "number", "value": "0.5"}
    arguments = {"a": "{{ params.ratio }}", "b": ["x{{ params.size }}"], "c": "{{ params.date }}"}
    step = python_step(batchSize="{{ params.size }}")
    step["python"]["constructorArgs"] = arguments
    own = parse(job(size, ratio, DATE, steps=[step])).spec.steps[0]
    assert own.batch_size == 16
    assert own.python is not None
    assert own.python.constructor_args == {"a": 0.5, "b": ["x16"], "c": "2026-01-31"}


def test_gate_has_parameters() -> None:
    numbers = {"limit": "0.5", "rows": "9"}
    given = job(*({"name": n, "type": "number", "value": v} for n, v in numbers.items()))
    given["spec"]["gate"] = {"rows": "{{ params.rows }}", "expect": "mean(a) > {{ params.limit }}"}
    gate = parse(given).spec.gate
    assert gate is not None
    assert (gate.rows, gate.expect) == (9, "mean(a) > 0.5")


@pytest.mark.parametrize(
    "value",
    ["a\nresume: false", "{format: csv}", '", "x', "[1, 2]", "null", "\\1\\g<0>", "{{ date }}"],
)
def test_value_is_substituted_as_a_single_text(value: str) -> None:
    step = python_step()
    step["python"]["constructorArgs"] = {"x": "{{ params.x }}"}
    own = parse(job({"name": "x"}, steps=[step]), ParameterValues({"x": value})).spec.steps[0]
    assert own.python is not None
    assert own.python.constructor_args == {"x": value}


def test_braces_that_are_not_references_are_kept() -> None:
    for text in ("{{ other }}", "{{'a': 1}}", "{% if x %}", "{{ bos_token }}", "$(params.date)"):
        assert parsed(f"s3://out/{text}", DATE) == f"s3://out/{text}"


def test_values_from_the_command_line_are_checked_like_those_of_the_file(
    messages: Messages,
) -> None:
    messages.check(refused(job(DATE), dat="x"))
    body = job({"name": "n", "type": "number"}, write={"format": "parquet", "path": "s3://o/"})
    body["spec"]["read"]["paths"] = ["{{ params.n }}"]
    (text,) = refused(body, n="two")
    messages.check(text)
    (nested,) = refused(job({"name": "n"}, read={"format": "text", "paths": ["{{ params.n }}"]}),
                        n="{{ params.n }}")  # fmt: skip
    assert nested.startswith("spec.read.paths[0]: the value of 'n' contains a reference")


def test_aliases_that_grow_exponentially_are_walked_once() -> None:
    value: list[Any] = ["{{ params.date }}"]
    for _ in range(60):
        value = [value, value]
    value.append(value)
    with pytest.raises(SpecError, match=r"spec\.read\.paths"):
        parse(job(DATE, read={"format": "text", "paths": value}))


def test_unquoted_reference_is_explained(messages: Messages) -> None:
    text = "kind: BatchInference\nspec:\n  write:\n    path: {{ params.date }}\n"
    with messages.raises(SpecError):
        parse_one(text)
