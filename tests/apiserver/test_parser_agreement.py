"""The API server and the parser accept and refuse the same documents.

Each rule of the parser is either in the definition, so that a case of test_documents.py reaches
it, or in PARSER_ONLY with a reason. Nulls are not tested: the server drops a field that is null.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

import batchinference.spec
from apiserver.test_documents import FULL, REFUSED, asking, models
from batchinference.spec import BatchInference
from batchinference.spec.job import SCHEDULE_KIND
from batchinference.spec.schedule import BatchInferenceSchedule
from support.cluster.deployment import CHART
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import document, model_step, schedule_document
from support.documents.refusals import reading, reading_source, valid_documents
from support.documents.variations import (
    REMOVED,
    Place,
    at,
    changed,
    full_document,
    named,
    place_of,
    places,
)
from support.documents.yaml_files import read_yaml
from support.servers.api_server import Namespace, refusal
from support.tiers import examples

Document = dict[str, Any]

SPEC = Path(batchinference.spec.__file__).parent
ONLY_THE_OPERATOR = {"status.py"}
"""Modules whose rules are about objects that no user writes."""


class Rule(NamedTuple):
    """A statement of the specification that raises an error about a document."""

    file: str
    line: int


def rules_of_the_parser() -> set[Rule]:
    """Return each statement that raises a PydanticCustomError, also by a function that makes it."""
    return {
        Rule(str(file.relative_to(SPEC)), statement.lineno)
        for file in SPEC.rglob("*.py")
        if file.name not in ONLY_THE_OPERATOR
        for statement in raises_of(ast.parse(file.read_text()))
    }


def raises_of(tree: ast.Module) -> Iterator[ast.AST]:
    error = PydanticCustomError.__name__
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    makers = {one.name for one in functions if one.returns and ast.unparse(one.returns) == error}
    for node in ast.walk(tree):
        call = node.exc if isinstance(node, ast.Raise) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {error, *makers}:
            yield node


@cache
def in_spec(file: str) -> bool:
    return Path(file).is_relative_to(SPEC)


@contextmanager
def raised() -> Iterator[set[Rule]]:
    """Collect the lines of the specification that raise or pass on an error during the block."""
    lines: set[Rule] = set()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not in_spec(file):
            return None
        frame.f_trace_lines = False
        if event == "exception" and argument[0] is PydanticCustomError:
            lines.add(Rule(str(Path(file).relative_to(SPEC)), frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


RULES = rules_of_the_parser()


def error_types(body: Document) -> set[str]:
    """Return the types of the errors that the parser finds in a document."""
    model = BatchInferenceSchedule if body.get("kind") == SCHEDULE_KIND else BatchInference
    try:
        model.model_validate(body)
    except ValidationError as error:
        return {details["type"] for details in error.errors()}
    return set()


def faults(body: Document) -> set[str | Rule]:
    """Return the rules that a document breaks, and the types of the errors of pydantic."""
    with raised() as lines:
        kinds = error_types(body)
    return {*(kinds & PYDANTIC), *(lines & RULES)} or {OTHER for _ in kinds}


PYDANTIC = {
    *("missing", "extra_forbidden", "model_type", "dict_type", "list_type", "string_type"),
    *("int_type", "int_from_float", "float_type", "bool_type", "literal_error", "too_short"),
    *("too_long", "string_too_short", "string_too_long", "string_pattern_mismatch"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    *("union_tag_invalid", "union_tag_not_found", "model_attributes_type", "finite_number"),
}
"""Types of errors about the schema, which the definition has too."""
OTHER = "other"
"""Stands for the other types."""


def with_full(place: str, value: Any) -> Document:
    return changed(FULL, place_of(place), value)


def with_model(**model: Any) -> Document:
    return document(steps=[model_step(model=model)])


def nested(levels: int) -> Document:
    return {"a": nested(levels - 1)} if levels else {}


COST = "over all steps, the rule exceeds the cost limit of the API server"
NO_SCHEMA = "CEL cannot read a field without a schema"
TEMPLATE = "CEL cannot extract names from a template"
URL_PARTS = "CEL cannot divide an address into parts as Python does"
PYTHON = "only Python has a list of its encodings"
ZONES = "only Python has a list of time zones"
LANGUAGE = "CEL cannot parse another language"
NOT_JSON = "JSON has no such value, so the API server never receives it"
TWO_INPUTS = {"question": "text", "other": "title"}
PHOTO = {"question": "text", "photo": "image"}
PARSER_ONLY: list[tuple[Document, str]] = [
    (with_full("spec.steps.10.selectColumns", ["path", "path"]), COST),
    (with_full("spec.steps.12.renameColumns", {"a": "c", "b": "c"}), COST),
    (with_full("spec.steps.3.python.callArgs", nested(40)), NO_SCHEMA),
    (with_full("spec.steps.3.python.callArgs", {"a": "x" * 70_000}), NO_SCHEMA),
    (with_full("spec.steps.3.python.callArgs", {"a": [1] * 70_000}), NO_SCHEMA),
    (with_full("spec.steps.3.python.callArgs", {"a": {1: 2}}), NOT_JSON),
    (with_full("spec.steps.3.python.callArgs", {"a": float("inf")}), NOT_JSON),
    (with_full("spec.steps.3.python.callArgs", {"a": date(2026, 1, 31)}), NOT_JSON),
    (with_full("spec.steps.15.python.constructorArgs", {"model": 1}), NO_SCHEMA),
    (with_full("spec.steps.4.filter", "score >"), LANGUAGE),
    (with_full("spec.steps.9.addColumns", {"good": "contains(text", "'good')": None}), LANGUAGE),
    (with_full("spec.steps.8.decode.fields", {"name": "text"}), LANGUAGE),
    (with_full("spec.steps.7.decode.encoding", "klingon"), PYTHON),
    (reading("parquet", assumeTimezone="Mars/Olympus"), ZONES),
    (reading("manifest", allow=["https://host:99999/"]), URL_PARTS),
    (reading_source("sql", url="postgresql://db/x?password=secret"), URL_PARTS),
    (with_model(**chat(url="https://llm.example/v1?api_key=x")), URL_PARTS),
    (with_model(**chat(sampling={"api_key": "x"})), NO_SCHEMA),
    (with_model(**chat(sampling={"n": 2})), NO_SCHEMA),
    (with_model(**json_endpoint(sampling={"seed": 1})), NO_SCHEMA),
    (with_model(**json_endpoint(body={})), NO_SCHEMA),
    (with_model(**json_endpoint(inputs={"value": "text", "other": "title"})), TEMPLATE),
    (with_model(**chat(prompt="{question")), TEMPLATE),
    (with_model(**chat(prompt="{bogus}")), TEMPLATE),
    (with_model(**chat(inputs=TWO_INPUTS, prompt="{question}")), TEMPLATE),
    (with_model(**chat(inputs=TWO_INPUTS)), TEMPLATE),
    (
        with_model(**chat(inputs=PHOTO, images=["photo"], system="{photo}", prompt="{question}")),
        TEMPLATE,
    ),
    (
        with_model(**chat(inputs={**PHOTO, "same": "image"}, images=["photo"], prompt="{same}")),
        TEMPLATE,
    ),
    (document(steps=models("transformers texts", sampling={"top_p": 1})), NO_SCHEMA),
    (
        document(steps=models("transformers text", sampling={"seed": 1, "num_beams": 2})),
        NO_SCHEMA,
    ),
    (document(steps=asking(engine={"model": "org/other"})), NO_SCHEMA),
    (document(steps=asking(sampling={"logprobs": 2})), NO_SCHEMA),
    (document(steps=asking(sampling={"max_new_tokens": 8})), NO_SCHEMA),
    (document(steps=asking(sampling={"max_tokens": "8"})), NO_SCHEMA),
    *(
        (document(steps=asking(sampling={"structured_outputs": constraints})), NO_SCHEMA)
        for constraints in (
            {"disable_any_whitespace": True},
            {"grammars": "a"},
            {"regex": "a", "choice": ["a"]},
        )
    ),
    (document(steps=asking(chat=False, chatTemplateArgs={"a": 1})), NO_SCHEMA),
    (schedule_document(schedule="61 * * * *"), LANGUAGE),
]
"""A document for each rule that only the parser has, and why the definition cannot have it."""


@cache
def without_cel() -> set[str | Rule]:
    """Return the rules that the definition does not have."""
    return {rule for body, _ in PARSER_ONLY for rule in faults(body)} | {OTHER}


def test_each_rule_of_the_parser_has_a_case_or_a_reason() -> None:
    """A new rule needs a CEL rule and a case in test_documents.py, or a reason in PARSER_ONLY."""
    refused = [faults(changed(FULL, place_of(place), value)) for place, value, _ in REFUSED]
    alone = {rule for found in refused if len(found) == 1 for rule in found}
    assert sorted(RULES - alone - without_cel()) == []


def test_only_the_parser_refuses_the_exceptions(module_namespace: Namespace) -> None:
    for body, reason in PARSER_ONLY:
        found = faults(body)
        assert len(found) == 1, (reason, body["spec"])
        assert found <= RULES, (reason, body["spec"])
        if reason is not NOT_JSON:
            assert refusal(module_namespace, body) is None, (reason, found)


BASES = [*[full_document()] * 9, *valid_documents().values()]

NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 8, 40, 41, 64, 65, 100, 101, 1024, 1025, 10000, 10001, 10**18]),
    st.sampled_from([0.5, -0.5, 99.5, 100.5, 1e-9]),
)
WORDS = st.one_of(
    st.sampled_from(["", "a", "a" * 40, "a" * 41, "A-b", "a.b", "s3://in/", "/data", "a > 1", "é"]),
    st.sampled_from(
        ["images", "text", "csv", "json", "parquet", "binary", "torch", "transformers"]
    ),
    st.sampled_from(
        ["zstd", "gzip", "none", "overwrite", "mean", "cls", "RGB", "Always", "Exists"]
    ),
    st.sampled_from(["8Gi", "1.5k", "1 G", "module:name", "m:C", "module", "feature-extraction"]),
    st.sampled_from(["511Mi", "t4", "61s", "read", "sample_rate", "_a", ".a", "a b", "score"]),
    st.sampled_from(["s3:in", "http://in/", "s3://a@b/", "s3:///", "file://", "az://c/w"]),
)
SHAPES = st.sampled_from(
    [{}, [], [{}], {"a": "b"}, {"a b": "c"}, {"text": "a"}, ["a"], ["a", "a"], ["_a"], [1, 1]]
)
VALUES = st.one_of(st.just(REMOVED), st.booleans(), NUMBERS, WORDS, SHAPES)
FIELDS = sorted(
    {str(place[-1]) for place in places(full_document()["spec"])} | {"bogus", "factory"}
)


def similar(value: Any) -> st.SearchStrategy[Any]:
    """Return values of the same type."""
    match value:
        case bool():
            return st.booleans()
        case int() | float():
            return NUMBERS
        case str():
            return WORDS
        case list() if value:
            return st.lists(st.sampled_from(value), max_size=4)
        case _:
            return SHAPES


@st.composite
def variations(draw: st.DrawFn) -> Document:
    """Return a valid document with one or two values replaced, mostly by plausible ones."""
    body = draw(st.sampled_from(BASES))
    for _ in range(draw(st.integers(1, 2))):
        if not body["spec"]:
            break
        place = draw(st.sampled_from([("spec", *place) for place in places(body["spec"])]))
        value = draw(st.one_of(similar(at(body, place)), VALUES))
        if value is not REMOVED and isinstance(place[-1], str) and draw(st.integers(0, 3)) == 0:
            place = (*place[:-1], draw(st.sampled_from(FIELDS)))
        note(f"{named(place)} = {value!r}")
        body = changed(body, place, value)
    return body


def agree(namespace: Namespace, body: Document) -> bool:
    """Return whether both accept the document or both refuse it, as far as both have the rule."""
    found = faults(body)
    if found and found <= without_cel():
        return True
    return bool(found) == (refusal(namespace, body) is not None)


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=variations())
def test_api_server_and_parser_agree_on_each_document(
    module_namespace: Namespace, body: Document
) -> None:
    assert agree(module_namespace, body)


SCALARS = [
    ("spec", *place)
    for place in places(FULL["spec"])
    if type(at(FULL["spec"], place)) in (int, float, str)
]
CRD = read_yaml(CHART / "files" / "crd.yaml")


def around_bounds(place: Place) -> list[Any]:
    """Return values just inside and just outside the bounds of a place."""
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for key in place:
        inner = schema.get("properties", {}).get(key) or schema.get("items")
        schema = inner or schema.get("additionalProperties", {})
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    lengths = [schema.get("minLength", 1), schema.get("maxLength", 1)]
    if isinstance(at(FULL, place), str):
        return ["a" * (length + step) for length in lengths for step in (-1, 0, 1)]
    return [bound + step for bound in bounds for step in (-1, 0, 1)]


def in_turns(values: dict[Place, list[Any]]) -> Iterator[dict[Place, Any]]:
    """Yield the first values of all places, then the second values, and so on."""
    for turn in range(max(map(len, values.values()))):
        yield {place: found[turn] for place, found in values.items() if turn < len(found)}


def message_about(namespace: Namespace, values: dict[Place, Any]) -> str:
    """Return the server's message about the full document with other values. It names every place
    that breaks the schema."""
    body = full_document()
    for place, value in values.items():
        at(body, place[:-1])[place[-1]] = value
    return refusal(namespace, body) or ""


def test_server_and_parser_have_the_same_bounds(module_namespace: Namespace) -> None:
    allowed, refused = defaultdict[Place, list[Any]](list), defaultdict[Place, list[Any]](list)
    for place in SCALARS:
        for value in around_bounds(place):
            found = error_types(changed(FULL, place, value))
            if not found or found & PYDANTIC:
                (refused if found else allowed)[place].append(value)
    disagreements = [
        f"{named(place)} = {value!r}: {'refused by the parser' if outside else 'allowed'}"
        for group, outside in ((allowed, False), (refused, True))
        for values in in_turns(group)
        for message in (message_about(module_namespace, values),)
        for place, value in values.items()
        if (f"{named(place)}:" in message) != outside
    ]
    assert len(allowed) > 100
    assert len(refused) > 100
    assert disagreements == []
