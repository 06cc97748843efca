"""The parser and the API server refuse the same addresses with credentials."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from pydantic import ValidationError

from batchinference.spec import BatchInference, SpecError, parse
from batchinference.spec.address_credentials import (
    HIDDEN,
    OF_DATABASES,
    OF_PATHS,
    OF_SERVERS,
)
from generators.crds import custom_resource_definition
from support.documents.addresses import CREDENTIALS, FIELDS, HARMLESS, with_address
from support.documents.variations import Keys, keys_of

SPEC = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
CALL = re.compile(r"([\w\[\]]+)\.matches\('([^']*)'\)")
"""Matches the search for a pattern in a rule."""
Schema = dict[str, Any]


def schemas_of(keys: Keys) -> tuple[Schema, Schema]:
    """Return the schemas of the owner of a field and of the field itself."""
    owner = schema = SPEC
    for key in keys:
        owner, properties = schema, schema.get("properties", {})
        schema = properties.get(key) or schema.get("items") or schema["additionalProperties"]
    return owner, schema


def server_refuses(keys: Keys, address: str) -> bool:
    """Return whether a pattern or a rule of the definition refuses an address in a field."""
    owner, schema = schemas_of(keys)
    if not re.search(schema.get("pattern", ""), address):
        return True
    values = {"self": address, "self[name]": address, "name": str(keys[-1])}
    rules = [schema, owner] if "additionalProperties" in owner else [schema]
    texts = [one["rule"] for each in rules for one in each.get("x-kubernetes-validations", [])]
    calls = [call for text in texts for call in CALL.findall(text)]
    return any(re.search(pattern, values[of]) for of, pattern in calls)


def refused_for_credentials(document: Schema, keys: Keys) -> bool:
    """Return whether the parser refuses an address without showing it, or by its pattern."""
    try:
        BatchInference.model_validate(document)
    except ValidationError as error:
        kinds = {details["type"] for details in error.errors()}
        return bool(kinds & {HIDDEN, "string_pattern_mismatch"})
    return False


def test_server_and_parser_refuse_the_same_addresses() -> None:
    for (name, field), kind in FIELDS.items():
        keys = keys_of(field)
        for address in (*CREDENTIALS[kind], *HARMLESS[kind]):
            expected = address in CREDENTIALS[kind]
            document = with_address(name, field, address)
            assert refused_for_credentials(document, keys) == expected, (field, address)
            assert server_refuses(keys, address) == expected, (field, address)


def test_no_message_shows_a_credential() -> None:
    for (name, field), kind in FIELDS.items():
        for address in CREDENTIALS[kind]:
            with pytest.raises(SpecError) as refusal:
                parse(with_address(name, field, address))
            assert "hunter2" not in str(refusal.value), (field, address)


@pytest.mark.parametrize(
    "pattern", [OF_PATHS, OF_SERVERS, OF_DATABASES], ids=["paths", "servers", "databases"]
)
@pytest.mark.parametrize("part", ["?", "?-", "%3b", "%3bsecret", "%secret", "%3btoken-", "secret"])
def test_long_address_is_searched_in_a_short_time(pattern: str, part: str) -> None:
    """A job has up to 256 addresses of 1024 characters, and the operator searches all."""
    begin = time.process_time()
    assert not re.search(pattern, "https://a/?" + part * (16_384 // len(part)))
    assert time.process_time() - begin < 4


NAMES = re.compile(r"(path|paths|url|source|endpoint|loraPath|tokenizer|allow)(\[\])?")


def texts(schema: Schema, path: str) -> list[str]:
    """Return the paths of the texts below a schema."""
    below = [(f"{path}.{name}", child) for name, child in schema.get("properties", {}).items()]
    below += [(f"{path}[]", schema["items"])] if "items" in schema else []
    own = [path] if schema.get("type") == "string" else []
    return own + [each for name, child in below for each in texts(child, name)]


def test_each_field_with_an_address_is_tested() -> None:
    """Those of `cluster` are paths in pods and on nodes. All sections `storage` are the same."""
    everywhere = [
        path for path in texts(SPEC["properties"]["spec"], "spec") if ".cluster." not in path
    ]
    fields = {path for path in everywhere if NAMES.fullmatch(path.rpartition(".")[2])}
    tested = {re.sub(r"\.\d+", "[]", field) for _, field in FIELDS}
    assert {path for path in fields if not path.endswith("storage.endpoint")} <= tested
    assert {path for path in tested if "properties" not in path} <= fields


@pytest.mark.parametrize("name", ["token", "s3.secret-access-key", "adls.sas-token", "password"])
def test_property_with_a_secret_is_refused(name: str) -> None:
    field = f"spec.read.catalog.properties.{name.replace('.', '-')}"
    document = with_address("read iceberg", field, "x")
    assert server_refuses(keys_of(field), "x")
    assert refused_for_credentials(document, keys_of(field))


@pytest.mark.parametrize("part", ["?", "?a", "&token", "%3b", "://:", "://a:", "?sig", "a@"])
def test_long_address_is_searched_fast(part: str) -> None:
    """With cubic time, the test would exceed its timeout."""
    for (name, field), kind in FIELDS.items():
        start = "s3://" if kind == "files" else "https://h/"
        refused_for_credentials(with_address(name, field, start + part * 250), keys_of(field))
