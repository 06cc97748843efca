"""Documents that the API server accepts or refuses. The parser has further rules."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.address_credentials import REFUSAL
from support.cluster.deployment import CHART, ROOT
from support.documents.addresses import CREDENTIALS, HARMLESS, with_address
from support.documents.addresses import FIELDS as FIELDS_WITH_ADDRESSES
from support.documents.minimal import document
from support.documents.refusals import reading, valid_documents
from support.documents.variations import (
    REMOVED,
    Keys,
    at,
    changed,
    full_document,
    keys_in,
    keys_of,
    named,
)
from support.documents.yaml_files import read_yaml
from support.servers.api_server import Namespace, refusal
from support.tiers import examples

Document = dict[str, Any]

FULL = full_document()
EXAMPLES = sorted((ROOT / "examples").glob("*/job.yaml"))


def test_server_and_parser_accept_valid_documents(module_namespace: Namespace) -> None:
    """The defaults that the server fills in are also the parser's defaults."""
    for name, body in valid_documents().items():
        named = {**body, "metadata": {**body["metadata"], "generateName": "valid-"}}
        del named["metadata"]["name"]
        assert refusal(module_namespace, body) is None, name
        stored = module_namespace.create(named)
        assert parse(stored).spec == parse(body).spec, name


def test_server_and_parser_accept_the_examples(module_namespace: Namespace) -> None:
    for file in EXAMPLES:
        body = yaml.safe_load(file.read_text().replace("./", "s3://bucket/"))
        assert refusal(module_namespace, body) is None, file
        parse(body)


def test_null_field_is_dropped_by_the_server(namespace: Namespace) -> None:
    for field in ("read.options", "steps", "errors", "cluster", "write.mode"):
        name = f"without-{field.replace('.', '-')}"
        stored = namespace.create(changed(document(name), keys_of(f"spec.{field}"), None))
        assert parse(stored).spec == parse(document()).spec


REFUSED = read_yaml(Path(__file__).with_name("refused.yaml"))
TOO_MANY = ["spec.read.paths", ["s3://in/"] * 257, "spec.read.paths: Too many"]


def test_server_and_parser_refuse_invalid_documents(module_namespace: Namespace) -> None:
    offenders = []
    for keys, value, expected in [*REFUSED, TOO_MANY]:
        body = changed(FULL, keys_of(keys), REMOVED if value == "REMOVED" else value)
        message = refusal(module_namespace, body) or "accepted"
        if expected not in message:
            offenders.append(f"{keys} = {value!r:.60}: the server says {message}")
        with contextlib.suppress(SpecError):
            parse(body)
            offenders.append(f"{keys} = {value!r:.60}: the parser accepts it")
    assert offenders == []


def test_server_refuses_addresses_with_credentials(module_namespace: Namespace) -> None:
    """tests/unit/spec/test_address_credentials.py compares the parser with the same addresses."""
    offenders = []
    for (name, field), kind in FIELDS_WITH_ADDRESSES.items():
        for address in (*CREDENTIALS[kind], *HARMLESS[kind]):
            message = refusal(module_namespace, with_address(name, field, address)) or ""
            refused = REFUSAL in message or "should match" in message
            if refused != (address in CREDENTIALS[kind]):
                offenders.append(f"{field} = {address}: {message}")
    assert offenders == []


def test_server_refuses_secret_properties_of_a_catalog(module_namespace: Namespace) -> None:
    for name in ("token", "s3.secret-access-key"):
        body = with_address("read iceberg", "spec.read.catalog.properties.uri", "http://a")
        body["spec"]["read"]["catalog"]["properties"][name] = "x"
        assert REFUSAL in (refusal(module_namespace, body) or "")


QUANTITIES = ["500m", 0.5, "0.5", 2, "2", 1.25]


def test_server_accepts_quantities_in_each_form(module_namespace: Namespace) -> None:
    for cpu in QUANTITIES:
        body = changed(FULL, keys_of("spec.steps.1.resources.cpu"), cpu)
        assert refusal(module_namespace, body) is None, cpu
    for size in (65536, "65536", "64Mi"):
        body = reading("csv", maxRowBytes=size)
        assert refusal(module_namespace, body) is None, size


def test_server_accepts_references(module_namespace: Namespace) -> None:
    reference = "{{ params.day }}"
    paths = changed(FULL, keys_of("spec.read.paths"), [f"{reference}/a", f"s3://{reference}/"])
    assert refusal(module_namespace, paths) is None


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
FIELDS = sorted({str(keys[-1]) for keys in keys_in(full_document()["spec"])} | {"bogus", "factory"})


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
        keys = draw(st.sampled_from([("spec", *keys) for keys in keys_in(body["spec"])]))
        value = draw(st.one_of(similar(at(body, keys)), VALUES))
        if value is not REMOVED and isinstance(keys[-1], str) and draw(st.integers(0, 3)) == 0:
            keys = (*keys[:-1], draw(st.sampled_from(FIELDS)))
        note(f"{named(keys)} = {value!r}")
        body = changed(body, keys, value)
    return body


def error_types(body: Document) -> set[str]:
    """Return the types of the errors that the parser finds in a document."""
    try:
        BatchInference.model_validate(body)
    except ValidationError as error:
        return {details["type"] for details in error.errors()}
    return set()


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=variations())
def test_server_accepts_each_document_that_the_parser_accepts(
    module_namespace: Namespace, body: Document
) -> None:
    if not error_types(body):
        assert refusal(module_namespace, body) is None


PYDANTIC = {
    *("missing", "extra_forbidden", "model_type", "dict_type", "list_type", "string_type"),
    *("int_type", "int_from_float", "float_type", "bool_type", "literal_error", "too_short"),
    *("too_long", "string_too_short", "string_too_long", "string_pattern_mismatch"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
    *("union_tag_invalid", "union_tag_not_found", "model_attributes_type", "finite_number"),
}
"""Types of errors about the schema, which the definition has too."""
SCALARS = [
    ("spec", *keys)
    for keys in keys_in(FULL["spec"])
    if type(at(FULL["spec"], keys)) in (int, float, str)
]
CRD = read_yaml(CHART / "files" / "crd.yaml")


def around_bounds(keys: Keys) -> list[Any]:
    """Return values just inside and just outside the bounds of the field at `keys`."""
    schema = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for key in keys:
        inner = schema.get("properties", {}).get(key) or schema.get("items")
        schema = inner or schema.get("additionalProperties", {})
    bounds = [schema[key] for key in ("minimum", "maximum") if key in schema]
    lengths = [schema.get("minLength", 1), schema.get("maxLength", 1)]
    if isinstance(at(FULL, keys), str):
        return ["a" * (length + step) for length in lengths for step in (-1, 0, 1)]
    return [bound + step for bound in bounds for step in (-1, 0, 1)]


def in_turns(values: dict[Keys, list[Any]]) -> Iterator[dict[Keys, Any]]:
    """Yield the first values of all fields, then the second values, and so on."""
    for turn in range(max(map(len, values.values()))):
        yield {keys: value[turn] for keys, value in values.items() if turn < len(value)}


def message_about(namespace: Namespace, values: dict[Keys, Any]) -> str:
    """Return the server's message about the full document with other values. The message names
    each field that breaks the schema."""
    body = full_document()
    for keys, value in values.items():
        at(body, keys[:-1])[keys[-1]] = value
    return refusal(namespace, body) or ""


def test_server_and_parser_have_the_same_bounds(module_namespace: Namespace) -> None:
    allowed, refused = defaultdict[Keys, list[Any]](list), defaultdict[Keys, list[Any]](list)
    for keys in SCALARS:
        for value in around_bounds(keys):
            types = error_types(changed(FULL, keys, value))
            if not types or types & PYDANTIC:
                (refused if types else allowed)[keys].append(value)
    disagreements = [
        f"{named(keys)} = {value!r}: {'refused by the parser' if outside else 'allowed'}"
        for group, outside in ((allowed, False), (refused, True))
        for values in in_turns(group)
        for message in (message_about(module_namespace, values),)
        for keys, value in values.items()
        if (f"{named(keys)}:" in message) != outside
    ]
    assert len(allowed) > 100
    assert len(refused) > 100
    assert disagreements == []
