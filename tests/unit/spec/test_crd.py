"""The CustomResourceDefinition: the API server accepts it, and it agrees with the parser."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from batchinference.rendering import with_platform_defaults
from batchinference.spec import SpecError, parse
from batchinference.spec.base import ACCELERATOR, MEMORY
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.quantities import NUMBER
from batchinference.spec.validation_messages import PATTERNS
from generators.crds import custom_resource_definition
from support.documents.minimal import Document, document, python_step
from support.documents.refusals import READ_OPTIONS, reading, valid_documents, writing
from support.documents.variations import changed, full_document, keys_in
from support.tiers import examples

CRD = custom_resource_definition()
VERSION = CRD["spec"]["versions"][0]
ROOT = VERSION["schema"]["openAPIV3Schema"]
SPEC, STATUS = ROOT["properties"]["spec"], ROOT["properties"]["status"]
STRUCTURAL = {
    *("type", "format", "description", "default", "enum", "pattern", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
    *("properties", "items", "additionalProperties"),
    *("x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    "x-kubernetes-int-or-string",
}
"""Keywords of a structural schema: no $ref, anyOf, oneOf, const or nullable."""
KIB = 1024

Schema = dict[str, Any]


def schemas(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield a schema and all schemas below it, with their paths."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from schemas(schema[key], path + mark)


IN_SPEC = dict(schemas(SPEC, "spec"))
ALL = {**IN_SPEC, **dict(schemas(STATUS, "status"))}


def test_crd_is_valid_for_kubernetes() -> None:
    assert kubernetes_validate.validate(CRD, "1.35", strict=True)


def test_kubernetes_schema_refuses_an_invalid_crd() -> None:
    wrong = copy.deepcopy(CRD)
    wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = 7
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.35", strict=True)


def test_printer_columns_have_the_type_of_their_field() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*?\)\]", "[]", column["jsonPath"]).removeprefix(".")
        if not path.startswith("metadata."):
            assert ALL[path]["type"] == column["type"], path
            assert column["type"] in ("integer", "number", "string"), path


def test_crd_fits_into_an_annotation() -> None:
    assert len(json.dumps(CRD)) < 256 * KIB


def is_quantity(schema: Schema) -> bool:
    """Return whether a schema has no type, because a quantity is a number or a text, or because a
    value may be a name or a list of names."""
    return "type" not in schema and schema.get("pattern") in (NUMBER, MEMORY, ACCELERATOR)


def test_schema_is_structural() -> None:
    for path, schema in ALL.items():
        assert set(schema) <= STRUCTURAL, path
        one_of_two = schema.get("x-kubernetes-int-or-string", False)
        kinds = {"object", "array", "string", "integer", "number", "boolean"}
        assert one_of_two or is_quantity(schema) or schema["type"] in kinds, path
        assert ("items" in schema) == (schema.get("type") == "array"), path


def test_schema_objects_declare_their_fields() -> None:
    inside = {"properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"}
    for path, schema in ALL.items():
        if schema.get("type") != "object":
            continue
        assert len(inside & set(schema)) == 1, path
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), path


def test_unknown_fields_are_kept_in_arguments_only() -> None:
    kept = [path for path in ALL if "x-kubernetes-preserve-unknown-fields" in ALL[path]]
    free = [path for path in kept if not is_quantity(ALL[path])]
    assert [path.removeprefix("spec.steps[].") for path in free] == [
        "spec.read.items[]",
        "model.sampling",
        "model.options",
        "model.schema.jsonSchema",
        "model.factoryArgs",
        "model.body",
        "model.chatTemplateArgs",
        "model.engine",
        "python.constructorArgs",
        "python.callArgs",
        "spec.notifications[].body",
        "status.operator",
    ]


def test_every_field_is_described() -> None:
    for path, schema in ALL.items():
        if not path.endswith(("[]", "{}")):
            assert schema.get("description"), path
            assert len(schema["description"]) <= 1024, path


def test_no_message_shows_a_pattern() -> None:
    """Numbers and `auto` have their own messages."""
    patterns = {schema["pattern"] for schema in IN_SPEC.values() if "pattern" in schema}
    assert patterns - set(PATTERNS) == {NUMBER, "^auto$"}


def test_names_in_the_status_are_not_listed() -> None:
    """A definition that is older than the operator would refuse the whole status for a new one."""
    listed = {path for path, schema in schemas(STATUS, "status") if "enum" in schema}
    assert listed == {"status.conditions[].status"}, "this list is that of Kubernetes"


def test_spec_fields_are_bounded() -> None:
    """The API server refuses rules over unbounded values, and etcd limits the size of an object."""
    bounds = {"string": "maxLength", "array": "maxItems", "integer": "maximum", "number": "maximum"}
    for path, schema in IN_SPEC.items():
        kind = schema.get("type")
        if kind in bounds and "enum" not in schema:
            assert bounds[kind] in schema, path
        if kind in ("integer", "number"):
            assert "minimum" in schema, path
        if kind == "object" and "properties" not in schema:
            assert "maxProperties" in schema, path


def test_schema_lists_with_keys_are_maps() -> None:
    keys = {path: one["x-kubernetes-list-map-keys"] for path, one in ALL.items() if MAP & {*one}}
    assert keys["spec.cluster.topologySpreadConstraints"] == ["topologyKey", "whenUnsatisfiable"]
    for path, names in keys.items():
        assert ALL[path]["x-kubernetes-list-type"] == "map"
        assert set(names) <= set(ALL[path]["items"]["required"])


MAP = {"x-kubernetes-list-map-keys"}
RULES = {
    path: [rule["rule"] for rule in schema["x-kubernetes-validations"]]
    for path, schema in {"": ROOT, **ALL}.items()
    if "x-kubernetes-validations" in schema
}
"""CEL rules, by the path of their object."""


FUNCTIONS = "matches|map|all|exists|exists_one|contains|startsWith|endsWith|lowerAscii"
"""Functions of CEL that rules call on a field."""


def test_rules_refer_to_existing_fields() -> None:
    for path, rules in RULES.items():
        for field in re.findall(r"self\.([\w.]+)", " ".join(rules)):
            keys = re.sub(rf"(^|[.])({FUNCTIONS})$", "", field)
            assert f"{path}.{keys}".strip(".") in {*ALL, "metadata.name"}, path


VALIDATOR = Draft4Validator(ROOT)
"""Draft 4 has the exclusive bounds of OpenAPI 3.0, the schema language of CRDs."""


def test_schema_accepts_valid_jobs() -> None:
    for valid in valid_documents().values():
        VALIDATOR.validate(valid)


SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["zstd", "text", "8Gi", "1.5", "a > 1", "m:C", "Exists", "/a", "mean"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(), SCALARS, max_size=3)


@given(st.sampled_from(list(valid_documents().values())), st.data(), VALUES)
@settings(max_examples=examples(600), deadline=None)
def test_schema_accepts_all_that_the_parser_accepts(
    original: Document, data: st.DataObject, value: Any
) -> None:
    wrong = changed(original, data.draw(st.sampled_from(list(keys_in(original)))), value)
    try:
        parse(wrong)
    except SpecError:
        return
    VALIDATOR.validate(wrong)


INVALID_VALUES = [
    (("spec", "read", "paths"), []),
    (("spec", "read", "format"), "avro"),
    (("spec", "read", "options", "size"), [1]),
    (("spec", "steps", 1, "name"), "Upper"),
    (("spec", "steps", 1, "resources", "cpu"), 0),
    (("spec", "steps", 1, "resources", "memory"), "8gb"),
    (("spec", "steps", 1, "replicas", "max"), 0),
    (("spec", "steps", 3, "python", "callable"), "module.Class"),
    (("spec", "errors", "maxPercent"), 101),
    (("spec", "cluster", "volumeMounts", 0, "mountPath"), "data"),
]


def test_schema_refuses_an_invalid_value() -> None:
    for keys, value in INVALID_VALUES:
        assert not VALIDATOR.is_valid(changed(full_document(), keys, value)), keys


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a value with the defaults that the API server adds."""
    if isinstance(value, list):
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    filled = {name: child["default"] for name, child in properties.items() if "default" in child}
    return {**filled, **{key: with_defaults(value[key], properties.get(key, {})) for key in value}}


WITHOUT_DEFAULTS = {
    **valid_documents(),
    **{f"bare options of {name}": reading(name, fileExtensions=["a"]) for name in READ_OPTIONS},
    "bare parquet": writing("parquet"),
    "bare json": writing("json"),
    "bare step": document(steps=[python_step(replicas={}, resources={})]),
    "bare cluster": document(
        cluster={
            "volumes": [{"name": "a", "hostPath": {"path": "/a"}}],
            "volumeMounts": [{"name": "a", "mountPath": "/a"}],
            "tolerations": [{"key": "a"}],
        }
    ),
}


def test_schema_defaults_equal_those_of_the_parser() -> None:
    for name, valid in WITHOUT_DEFAULTS.items():
        assert parse(with_defaults(valid, ROOT)) == parse(valid), name


def test_schema_has_no_default_for_a_field_with_a_default_of_the_platform() -> None:
    """The API server would set the default, and the job would override the platform with it."""
    of_platform = {str(field.alias) for field in PlatformDefaults.model_fields.values()}
    sections = {"cluster", *of_platform} & SPEC["properties"].keys()
    assert sections == {"cluster", "retry", "deadlines", "ttl"}
    with_default = {path.split(".")[1] for path, one in IN_SPEC.items() if "default" in one}
    assert with_default & sections == set()


PLATFORM = PlatformDefaults.model_validate(
    {
        "image": "platform:1",
        "fallback": {"after": "1h"},
        "retry": {
            "maxAttempts": 9,
            "backoff": {"initial": "1m", "max": "1h"},
            "outOfMemory": {"memoryFactor": 3, "maxMemory": "64Gi"},
        },
        "ttl": {"cluster": "1h", "rayJob": "2d"},
    }
)
BARE = {
    "bare lifecycle": document(
        retry={"backoff": {}, "outOfMemory": {"maxMemory": "8Gi"}},
        ttl={},
        deadlines={},
        cluster={"fallback": {}, "head": {}, "workers": {}},
    ),
    **WITHOUT_DEFAULTS,
}


@pytest.mark.parametrize("name", BARE)
def test_job_from_a_file_and_from_the_api_server_has_the_same_settings(name: str) -> None:
    """The API server sets its defaults before the operator merges those of the platform."""
    stored, file = (parse(one) for one in (with_defaults(BARE[name], ROOT), BARE[name]))
    assert with_platform_defaults(stored, PLATFORM) == with_platform_defaults(file, PLATFORM)
