"""Converts pydantic models to structural schemas for CustomResourceDefinitions.

References are replaced by their definitions, and null is removed from optional fields. A tagged
union becomes one object with the fields of all variants. Only the models check which fields belong
to which variant.
"""

import ast
import inspect
import json
import sys
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema


class WithDescriptions(GenerateJsonSchema):
    """Generates the JSON schema of a model with the description of each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        """Return the JSON schema of a model. The text below a field is its description."""
        result = super().model_schema(schema)
        model = schema["cls"]
        for name, text in descriptions(model).items():
            field = model.model_fields.get(name)
            if field is not None:
                result["properties"][field.alias or name].setdefault("description", text)
        return result


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the description of each field of a model, including inherited fields."""
    result: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            result |= _module_descriptions(base.__module__).get(base.__name__, {})
    return result


@cache
def _module_descriptions(module: str) -> dict[str, dict[str, str]]:
    """Return the descriptions of the fields of all classes of a module, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            field.target.id: inspect.cleandoc(text.value.value)
            for field, text in pairwise(node.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for node in classes
    }


Schema = dict[str, Any]

_KEYWORDS = (
    *("type", "format", "description", "default", "enum", "pattern", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
"""The keywords of JSON Schema that structural schemas have too."""
_MAX_DESCRIPTION = 1024


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model. Raises ValueError if the model cannot have one."""
    return _merge_unions(expanded_schema(model))


def without_defaults(schema: Schema) -> Schema:
    """Return a structural schema without the defaults of all fields in it."""
    return _merge_unions(schema, with_defaults=False)


def expanded_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a model, with references replaced by their definitions.

    A tagged union has the form `{"tag": field, "variants": {value: schema}}`.
    """
    schema = json.loads(_json_schema(model))
    return _expand(schema, schema.get("$defs", {}))


@cache  # the slowest part of `expanded_schema`
def _json_schema(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(
        by_alias=True, ref_template="{model}", schema_generator=WithDescriptions
    )
    return json.dumps(schema)


def _expand(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a part of a JSON schema in the form of `expanded_schema`. `definitions` has the
    schemas to which references lead, by name."""
    schema = _dereference(schema, definitions)
    if "oneOf" in schema:
        return _expand_union(schema, definitions)
    if "anyOf" in schema:
        return _int_or_literal(schema)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    result = {key: schema[key] for key in schema if key in _KEYWORDS or key.startswith("x-")}
    result = _plain_numbers(_plain_description(result))
    if isinstance(result.get("type"), list):  # a quantity: an integer, a fraction or a text
        del result["type"]
        result["x-kubernetes-preserve-unknown-fields"] = True
    if "properties" in schema:
        result["properties"] = {
            name: _expand(child, definitions) for name, child in schema["properties"].items()
        }
    elif schema.get("additionalProperties") is True:
        result["x-kubernetes-preserve-unknown-fields"] = True
    elif schema.get("additionalProperties"):
        result["additionalProperties"] = _expand(schema["additionalProperties"], definitions)
    if "items" in schema:
        result["items"] = _expand(schema["items"], definitions)
    return result


def _dereference(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return the schema to which a reference leads. An optional field loses its null type."""
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return _dereference({**definitions[schema["$ref"]], **own}, definitions)
    types = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(types) == 1:
        own = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _dereference({**types[0], **own}, definitions)
    return schema


def _int_or_literal(schema: Schema) -> Schema:
    """Return the schema of a union of an integer and a fixed string, with the Kubernetes type
    IntOrString. Raises ValueError for any other union without a tag."""
    types = {option.get("type"): option for option in schema["anyOf"]}
    number, string = types.get("integer", {}), types.get("string", {})
    count = len([option for option in schema["anyOf"] if option.get("type") != "null"])
    if not number or "const" not in string or count != 2:
        raise ValueError(f"no structural form for {schema['anyOf']}")
    bounds = {name: number[name] for name in ("minimum", "maximum")}
    return {
        **_plain_description({"description": schema.get("description", "")}),
        **bounds,
        "pattern": f"^{string['const']}$",
        "x-kubernetes-int-or-string": True,
    }


def _expand_union(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    tag = schema["discriminator"]["propertyName"]
    variants = {}
    for variant in schema["oneOf"]:
        expanded = _expand(variant, definitions)
        variants[expanded["properties"][tag]["enum"][0]] = expanded
    return _plain_description(
        {"tag": tag, "variants": variants, "description": schema.get("description", "")}
    )


def _plain_description(schema: Schema) -> Schema:
    if text := schema.get("description"):
        return {**schema, "description": " ".join(text.split())[:_MAX_DESCRIPTION]}
    return schema


def _plain_numbers(schema: Schema) -> Schema:
    """Return the schema with exclusive bounds as flags, as in the OpenAPI 3.0 of Kubernetes."""
    for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if flag in schema:
            schema = {**schema, bound: schema[flag], flag: True}
    return schema


def _merge_unions(schema: Schema, *, with_defaults: bool = True) -> Schema:
    """Return the schema with each union as one object. Only scalar defaults outside of lists stay.
    GitOps tools compare a list as one value, and would report a default that is added in it."""
    if "variants" in schema:
        schema = _merge_union(schema)
    result = {key: value for key, value in schema.items() if key != "default"}
    if with_defaults and not isinstance(schema.get("default"), dict | list | None):
        result["default"] = schema["default"]
    if "properties" in schema:
        children = schema["properties"].items()
        result["properties"] = {
            name: _merge_unions(child, with_defaults=with_defaults) for name, child in children
        }
    for key in ("items", "additionalProperties"):
        if key in schema:
            has_defaults = with_defaults and key != "items"
            result[key] = _merge_unions(schema[key], with_defaults=has_defaults)
    return result


def _merge_union(union: Schema) -> Schema:
    merged = _merge_variants(union["tag"], union["variants"])
    variants = union["variants"].items()
    descriptions = (f"{value}: {variant.get('description', '')}" for value, variant in variants)
    merged["description"] = " ".join([union["description"], *descriptions]).strip()
    return _plain_description(merged)


def _merge_variants(tag: str, variants: dict[str, Schema]) -> Schema:
    """Return one object schema with the fields of all variants."""
    names = {name: None for variant in variants.values() for name in variant["properties"]}
    properties = {}
    for name in names:
        fields = [
            each["properties"][name] for each in variants.values() if name in each["properties"]
        ]
        properties[name] = _merge_field(tag, name, fields)
        if len(fields) < len(variants):
            # the API server would add the default even where a variant lacks the field
            properties[name].pop("default", None)
    merged: Schema = {"type": "object", "properties": properties}
    required = set.intersection(*(set(each.get("required", [])) for each in variants.values()))
    if required:
        merged["required"] = sorted(required, key=list(names).index)
    return merged


def _merge_field(tag: str, name: str, fields: list[Schema]) -> Schema:
    """Return one schema for the field `name`, which has the schemas `fields` in several variants.
    It allows what any of these schemas allows. Raises ValueError if they are incompatible."""
    first = {**fields[0], **_loosest_bounds(fields)}
    loosened = ({**other, **_loosest_bounds(fields)} for other in fields)
    if all(_undescribed(other) == _undescribed(first) for other in loosened):
        return first
    if all("properties" in field for field in fields):
        merged = _merge_variants(tag, {str(number): field for number, field in enumerate(fields)})
        return {**merged, "description": first.get("description", name)}
    if not all("enum" in field for field in fields):
        raise ValueError(f"the variants of {tag} have different schemas for {name}")
    values = [value for field in fields for value in field["enum"]]
    others = {key: value for key, value in first.items() if key != "default"}
    return {**others, "enum": list(dict.fromkeys(values))}


def _loosest_bounds(fields: list[Schema]) -> Schema:
    """Return the loosest value of each bound that all variants of a field have."""
    return {
        bound: choose(field[bound] for field in fields)
        for bound, choose in (("minimum", min), ("maximum", max), ("maxLength", max))
        if all(bound in field for field in fields)
    }


def _undescribed(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "description"}
