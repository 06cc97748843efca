"""The API server and the parser judge alike, whatever is written into a document.

The parser knows more: rules that the definition cannot express. All that is wrong with a type, a
name, a bound or a field that is missing or unknown must be refused by both. Nulls are left out:
the server takes a field that is null for one that is not there.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batchinference.spec import BatchInference
from support.apiserver import Namespace, refusal
from support.deployment import CHART
from support.documents import document
from support.variations import REMOVED, Place, at, changed, full_document, named, places

Document = dict[str, Any]

SHARED_RULES = {"step_kind", "step_pool", "step_name"}
"""Rules of the parser's own that the definition has as well."""

BASES = [
    full_document(),
    document(),
    *(document(read={"format": kind, "paths": ["s3://in/"], "options": {}})
      for kind in ("parquet", "json", "csv", "text", "binary")),
    document(write={"format": "json", "path": "s3://out/", "compression": "none"}),
]  # fmt: skip

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
)
SHAPES = st.sampled_from([{}, [], [{}], {"a": "b"}, {"text": "a"}, ["a"], ["a", "a"], [1, 1]])
VALUES = st.one_of(st.just(REMOVED), st.booleans(), NUMBERS, WORDS, SHAPES)
FIELDS = sorted(
    {str(place[-1]) for place in places(full_document()["spec"])} | {"bogus", "factory"}
)


def similar(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same type."""
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
    """A valid document with one or two places changed, most of them to values that might do."""
    body = draw(st.sampled_from(BASES))
    for _ in range(draw(st.integers(1, 2))):
        if not body["spec"]:
            break  # there is nothing left to change
        place = draw(st.sampled_from([("spec", *place) for place in places(body["spec"])]))
        value = draw(st.one_of(similar(at(body, place)), VALUES))
        if value is not REMOVED and isinstance(place[-1], str) and draw(st.integers(0, 3)) == 0:
            place = (*place[:-1], draw(st.sampled_from(FIELDS)))
        note(f"{named(place)} = {value!r}")
        body = changed(body, place, value)
    return body


def faults(body: Document) -> set[str]:
    """What the parser has against a document, by the kinds of its rules."""
    try:
        BatchInference.model_validate(body)
    except ValidationError as error:
        return {details["type"] for details in error.errors()}
    return set()


def shared(faults: set[str]) -> bool:
    """Whether the server must see some of them: pydantic's own, and rules that are in both."""
    return not faults.isdisjoint(SHARED_RULES | PYDANTIC)


PYDANTIC = {
    *("missing", "extra_forbidden", "model_type", "dict_type", "list_type", "string_type"),
    *("int_type", "int_from_float", "float_type", "bool_type", "literal_error", "too_short"),
    *("too_long", "string_too_short", "string_too_long", "string_pattern_mismatch"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    *("union_tag_invalid", "union_tag_not_found", "model_attributes_type", "finite_number"),
}


def assert_agreement(namespace: Namespace, body: Document) -> None:
    found, words = faults(body), refusal(namespace, body)
    if not found:
        assert words is None
    elif shared(found):
        assert words is not None, found


@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=variations())
def test_server_and_parser_agree(module_namespace: Namespace, body: Document) -> None:
    assert_agreement(module_namespace, body)


FULL = full_document()
SCALARS = [
    ("spec", *place)
    for place in places(FULL["spec"])
    if type(at(FULL["spec"], place)) in (int, float, str)
]
CRD = yaml.safe_load((CHART / "files" / "crd.yaml").read_text())


def around_bounds(place: Place) -> list[Any]:
    """Values just inside and just outside of what the definition allows in a place."""
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for key in place:
        inner = schema.get("properties", {}).get(key) or schema.get("items")
        schema = inner or schema.get("additionalProperties", {})
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    lengths = [schema.get("minLength", 1), schema.get("maxLength", 1)]
    if isinstance(at(FULL, place), str):
        return ["a" * (length + step) for length in lengths for step in (-1, 0, 1)]
    return [bound + step for bound in bounds for step in (-1, 0, 1)]


@pytest.mark.parametrize("place", SCALARS, ids=map(named, SCALARS))
def test_server_and_parser_have_the_same_bounds(module_namespace: Namespace, place: Place) -> None:
    for value in around_bounds(place):
        assert_agreement(module_namespace, changed(FULL, place, value))
