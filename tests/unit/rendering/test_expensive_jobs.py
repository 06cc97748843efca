"""No job takes the operator, which plans the jobs of all tenants, much CPU time."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable
from typing import Any

import pytest

from batchinference.rendering import Names, attempt_objects
from batchinference.spec import SpecError, parse
from batchinference.spec.problems import MAX_PROBLEMS, did_you_mean
from plugins.messages import Messages
from support.documents.minimal import Document, document, python_step

NAMES = [f"{'a' * 36}{number:03d}" for number in range(250)]
OTHERS = [f"{'a' * 36}{number:03d}" for number in range(500, 750)]
READ = {"format": "parquet", "paths": ["s3://in/"], "options": {"columns": NAMES[:30]}}
REFERENCES = "".join(f"{{{{ params.{name} }}}}" for name in OTHERS)
DEVICES = {"resources": {"custom": dict.fromkeys(OTHERS[:8], 1)}}
PARAMS = {name[-19:]: {"log-color": "true"} for name in OTHERS[:32]}
PROBLEMS = {
    "fields": dict.fromkeys(OTHERS, 1),
    "columns": {"read": READ, "steps": [{"name": "a", "selectColumns": OTHERS}]},
    "columns of conditions": {
        "read": READ,
        "steps": [{"name": "a", "filter": " or ".join(f"{name} == 'a'" for name in OTHERS[:40])}],
    },
    "references": {
        "parameters": [{"name": name} for name in NAMES[:32]],
        "steps": [python_step(python={"callable": "m:f", "constructorArgs": {"a": REFERENCES}})],
    },
    "devices": {"steps": [python_step(f"a{number}", **DEVICES) for number in range(32)]},
    "groups": {"cluster": {"image": "x", "rayStartParams": PARAMS}},
}


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Return a list of the first arguments of all calls of a function from now on."""
    calls: list[Any] = []
    function: Callable[..., Any] = getattr(module, name)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0])
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, wrapper)
    return calls


def render(job: Document) -> None:
    attempt_objects(parse(job), Names("job", "uid", 1), None)


@pytest.mark.parametrize("case", PROBLEMS)
def test_number_of_described_problems_is_limited(
    case: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    compared = counted(monkeypatch, difflib, "get_close_matches")
    with pytest.raises(SpecError) as caught:
        render(document(**PROBLEMS[case]))
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    messages.check(str(caught.value).splitlines()[-1])
    assert len(compared) <= MAX_PROBLEMS + 1


def test_suggestions_are_not_searched_among_many_long_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = counted(monkeypatch, difflib, "get_close_matches")
    assert did_you_mean(OTHERS[0], NAMES) == ""
    assert compared == []
    assert did_you_mean(OTHERS[0], NAMES[:30]) != ""


def test_each_expression_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = counted(monkeypatch, ast, "parse")
    steps = [
        {"name": "a", "filter": "parsed_once > 1"},
        {"name": "b", "addColumns": {"c": "parsed_once + 2"}},
        {"name": "d", "dropColumns": NAMES},
    ]
    render(document(read={"format": "parquet", "paths": ["s3://in/"]}, steps=steps,
                    cluster={"image": "x"}))  # fmt: skip
    assert sorted(text for text in parsed if "parsed_once" in text) == [
        "parsed_once + 2",
        "parsed_once > 1",
    ]
