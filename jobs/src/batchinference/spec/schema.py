"""Converts pydantic models to structural schemas for CustomResourceDefinitions.

References are replaced by their definitions, and null is removed from optional fields. A tagged
union becomes one object with the fields of all variants. CEL rules allow each field only for the
variants that have it.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from pydantic import BaseModel

from batchinference.spec.descriptions import WithDescriptions

Schema = dict[str, Any]

_KEPT = (
    *("type", "format", "description", "default", "enum", "pattern", "required"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
_MAX_DESCRIPTION = 1024
_RULES = "x-kubernetes-validations"
_NESTED = ("items", "additionalProperties")


def structural_schema(model: type[BaseModel]) -> Schema:
    """Return the structural schema of a model. Raises ValueError if there is none."""
    return _merge_unions(expanded_schema(model))


def expanded_schema(model: type[BaseModel]) -> Schema:
    """Return the schema of a model, with references replaced by their definitions.

    A tagged union has the form `{"tag": field, "variants": {value: schema}}`.
    """
    schema = json.loads(_json_schema(model))
    return _expand(schema, schema.get("$defs", {}))


@functools.cache  # generating the schema of a job takes most of the time of `expanded_schema`
def _json_schema(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(
        by_alias=True, ref_template="{model}", schema_generator=WithDescriptions
    )
    return json.dumps(schema)


def _expand(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _dereference(schema, definitions)
    if "oneOf" in schema:
        return _expand_union(schema, definitions)
    if "anyOf" in schema:
        return _int_or_literal(schema)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    result = {key: schema[key] for key in schema if key in _KEPT or key.startswith("x-")}
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
    """Return the schema without references, and without the null type of an optional field."""
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return _dereference({**definitions[schema["$ref"]], **own}, definitions)
    types = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
    if len(types) == 1:
        own = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _dereference({**types[0], **own}, definitions)
    return schema


def _int_or_literal(schema: Schema) -> Schema:
    """Return the schema of an integer or a fixed string, with the Kubernetes type IntOrString.

    Raises ValueError for any other union without a tag.
    """
    types = {option.get("type"): option for option in schema["anyOf"]}
    number, string = types.get("integer", {}), types.get("string", {})
    count = len([option for option in schema["anyOf"] if option.get("type") != "null"])
    if not number or "const" not in string or count != 2:
        raise ValueError(f"no structural form for {schema['anyOf']}")
    minimum, maximum, text = number["minimum"], number["maximum"], string["const"]
    rule = f"type(self) == int ? self >= {minimum} && self <= {maximum} : self == '{text}'"
    return {
        **_plain_description({"description": schema.get("description", "")}),
        "maxLength": len(text),
        "x-kubernetes-int-or-string": True,
        "x-kubernetes-validations": [
            {"rule": rule, "message": f"a number from {minimum} to {maximum}, or '{text}'"}
        ],
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
    """Return the schema with exclusive bounds as flags. Kubernetes uses OpenAPI 3.0."""
    for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if flag in schema:
            schema = {**schema, bound: schema[flag], flag: True}
    return schema


def _merge_unions(schema: Schema, *, in_list: bool = False) -> Schema:
    """Return the schema with each union as one object.

    Only scalar defaults outside of lists are kept. Tools that compare an object with its manifest
    treat a list as one value, so a default in a list would be a difference.
    """
    if "variants" in schema:
        schema = _merge_union(schema)
    result = {key: value for key, value in schema.items() if key != "default"}
    if not in_list and not isinstance(schema.get("default"), dict | list | None):
        result["default"] = schema["default"]
    if "properties" in schema:
        children = schema["properties"].items()
        result["properties"] = {
            name: _merge_unions(child, in_list=in_list) for name, child in children
        }
    for key in _NESTED:
        if key in schema:
            result[key] = _merge_unions(schema[key], in_list=in_list or key == "items")
    return result


def _merge_union(union: Schema) -> Schema:
    merged = _merge_variants(union["tag"], union["variants"])
    variants = union["variants"].items()
    descriptions = (f"{value}: {variant.get('description', '')}" for value, variant in variants)
    merged["description"] = " ".join([union["description"], *descriptions]).strip()
    return _plain_description(merged)


def _merge_variants(tag: str, variants: dict[str, Schema], path: str = "self") -> Schema:
    """Return one object schema with the fields of all variants.

    Each field that some variants do not have gets a CEL rule.
    """
    names = {name: None for variant in variants.values() for name in variant["properties"]}
    rules: list[Schema] = []
    properties = {}
    for name in names:
        fields = {value: variant["properties"][name] for value, variant in variants.items()
                  if name in variant["properties"]}  # fmt: skip
        properties[name] = _merge_field(tag, name, fields, f"{path}.{name}", rules)
        if len(fields) < len(variants):
            # the API server would add a default to the variants without the field
            properties[name].pop("default", None)
            rules.append(_only_for(tag, f"{path}.{name}", list(fields)))
    required = [set(variant.get("required", [])) for variant in variants.values()]
    for value, variant in variants.items():
        own = sorted(set(variant.get("required", [])) - set.intersection(*required))
        rules += [_required_for(tag, f"{path}.{name}", value) for name in own]
    rules += _rules_of_variants(tag, variants, path)
    merged: Schema = {"type": "object", "properties": properties}
    if common := sorted(set.intersection(*required), key=list(names).index):
        merged["required"] = common
    if rules:
        merged["x-kubernetes-validations"] = rules
    return merged


def _rules_of_variants(tag: str, variants: dict[str, Schema], path: str) -> list[Schema]:
    """Return the rules of the variants, each limited to the variants that have it."""
    values_of: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for value, variant in variants.items():
        for validation in variant.get(_RULES, []):
            rule = re.sub(r"\bself\b", path, validation["rule"])
            values_of.setdefault(rule, []).append(value)
            messages[rule] = validation["message"]
    return [
        {"rule": f"!(self.{tag} in {values}) || ({rule})", "message": messages[rule]}
        for rule, values in values_of.items()
    ]


def _merge_field(
    tag: str, name: str, fields: dict[str, Schema], path: str, rules: list[Schema]
) -> Schema:
    """Return the schema of a field from its schema in each variant, and add rules to `rules`.

    Raises ValueError if the schemas are incompatible.
    """
    first, *others = fields.values()
    if all(_shape(other) == _shape(first) for other in others):
        return dict(first)
    if all("properties" in field for field in fields.values()):
        return _merge_objects(tag, name, fields, path, rules)
    if name != tag and all("enum" in field for field in fields.values()):
        rules += [_enum_for(tag, path, value, field["enum"]) for value, field in fields.items()]
    elif name != tag:
        raise ValueError(f"the variants of {tag} have different schemas for {path}")
    values = [value for field in fields.values() for value in field["enum"]]
    kept = {key: value for key, value in first.items() if key != "default"}
    return {**kept, "enum": list(dict.fromkeys(values))}


def _merge_objects(
    tag: str, name: str, fields: dict[str, Schema], path: str, rules: list[Schema]
) -> Schema:
    """Return one schema for an object that differs between variants.

    Its rules are added to `rules`, because they refer to the tag in the parent.
    """
    merged = _merge_variants(tag, fields, path)
    rules += [
        {**rule, "rule": f"!has({path}) || ({rule['rule']})"}
        for rule in merged.pop("x-kubernetes-validations", [])
    ]
    return {**merged, "description": next(iter(fields.values())).get("description", name)}


def _shape(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "description"}


def _only_for(tag: str, path: str, values: list[str]) -> Schema:
    listed = ", ".join(f"'{value}'" for value in values)
    field = path.removeprefix("self.")
    return {
        "rule": f"!has({path}) || self.{tag} in [{listed}]",
        "message": f"{field} is for {tag} {' and '.join(values)} only",
    }


def _required_for(tag: str, path: str, value: str) -> Schema:
    field = path.removeprefix("self.")
    return {
        "rule": f"self.{tag} != '{value}' || has({path})",
        "message": f"{field} is required for {tag} {value}",
    }


def _enum_for(tag: str, path: str, value: str, allowed: list[str]) -> Schema:
    field = path.removeprefix("self.")
    listed = ", ".join(f"'{item}'" for item in allowed)
    return {
        "rule": f"self.{tag} != '{value}' || !has({path}) || {path} in [{listed}]",
        "message": f"{field} for {tag} {value} is one of {', '.join(allowed)}",
    }
