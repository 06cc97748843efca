"""Keyword arguments of steps and models may contain only JSON values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document, document, model_step
from support.documents.refusals import calling, refused, short

PLACE = "spec.steps[0].python.constructorArgs"
LOOP: list[Any] = []
LOOP.append(LOOP)
MAPPING = ": expected a mapping, got"
DATE = "JSON has no such value{}. Write a date in quotes"
KEY = "a key must be a text. Put it in quotes"


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, -7, 10**30, 0.5, "", "text", [], {}, [1, "a", None, [2.5]]),
        {"deep": {"deeper": [{"": 1}]}},
        {"id2label": {"0": "cat", "1": "dog"}},
    ],
    ids=short,
)
def test_argument_keeps_its_json_value(value: Any) -> None:
    step = parse(calling(constructorArgs={"argument": value})).spec.steps[0]
    assert step.python
    assert step.python.constructor_args == {"argument": value}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (dt.date(2026, 1, 2), DATE.format(", got a value of type date (not shown)")),
        ([dt.datetime(2026, 1, 2, tzinfo=dt.UTC)], DATE.format("")),
        (b"bytes", "JSON has no such value"),
        ({"a"}, "JSON has no such value"),
        (("a",), "JSON has no such value"),
        (float("nan"), "JSON has no such number"),
        ({"threshold": float("-inf")}, "JSON has no such number"),
        ({0: "cat"}, KEY),
        ([{True: "yes"}], KEY),
        (LOOP, "nested more than 32 levels deep"),
    ],
    ids=["date", "time", "bytes", "set", "tuple", "nan", "inf", "number", "boolean", "loop"],
)
def test_argument_outside_json_is_refused(value: Any, message: str) -> None:
    result = refused(calling(constructorArgs={"argument": value}))
    assert result.startswith(f"{PLACE}.argument: {message}")


def test_size_of_arguments_is_limited(messages: Messages) -> None:
    assert parse(calling(constructorArgs={"text": "x" * 65_000}))
    messages.check(refused(calling(constructorArgs={"text": "x" * 65_536})))


def _asking(field: str, value: Any) -> Document:
    return document(steps=[{"name": "ask", "model": chat(**{field: {"a": value}})}])


FREE: dict[str, Callable[[Any], Document]] = {
    "constructorArgs": lambda value: calling(constructorArgs={"a": value}),
    "callArgs": lambda value: calling(callArgs={"a": value}),
    "body": partial(_asking, "body"),
    "sampling": partial(_asking, "sampling"),
    "items": lambda value: document(read={"format": "items", "items": [{"a": value}]}),
}
"""Places for values of any form."""


@pytest.mark.parametrize("keys", FREE)
def test_repeated_aliases_are_not_expanded(keys: str) -> None:
    """In YAML, each alias of a list of aliases repeats all of its values."""
    values: list[Any] = ["x"]
    for _ in range(30):
        values = [values] * 9
    twice: list[Any] = []
    twice += [twice, twice]
    assert "at most 65536 bytes" in refused(FREE[keys](values))
    assert "nested more than 32 levels deep" in refused(FREE[keys](twice))


def test_argument_depth_is_limited_to_32() -> None:
    value: Any = 1
    for _ in range(32):
        value = [value]
    assert parse(calling(constructorArgs={"argument": value}))
    message = f"{PLACE}.argument: nested more than 32 levels deep"
    assert refused(calling(constructorArgs={"argument": [value]})) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {f"argument{number}": number for number in range(65)},
            ": expected at most 64 items, got 65",
        ),
        ({1: "a"}, ".1: as a key: expected a text, got a number (not shown)"),
        (None, f"{MAPPING} null"),
        ([], f"{MAPPING} a list"),
        ("a=1", f"{MAPPING} a text"),
        (7, f"{MAPPING} a number"),
    ],
    ids=short,
)
def test_arguments_must_be_a_mapping_of_at_most_64_names(arguments: Any, message: str) -> None:
    for field in ("constructorArgs", "callArgs"):
        result = refused(calling(**{field: arguments}))
        assert result.startswith(f"spec.steps[0].python.{field}{message}")


TORCH = {"runtime": "torch", "factory": "m:f", "inputs": {"x": "x"}, "output": "y"}


@pytest.mark.parametrize(
    ("model", "field"), [(model_step()["model"], "options"), (TORCH, "factoryArgs")], ids=short
)
def test_model_arguments_follow_the_same_rules(
    model: dict[str, Any], field: str, messages: Messages
) -> None:
    assert parse(document(steps=[model_step(model={**model, field: {"a": [1]}})]))
    wrong = {**model, field: {"a": dt.date(2026, 1, 2)}}
    messages.check(refused(document(steps=[model_step(model=wrong)])))
