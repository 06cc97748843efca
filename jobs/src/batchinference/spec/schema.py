"""From a pydantic model to the structural schema that a CustomResourceDefinition needs.

What the API server takes differs from what pydantic emits: references are written out, nullable
arms folded, and a tagged union becomes one object with the fields of all its arms and CEL rules
that keep each field with the arms that have it.
"""

from __future__ import annotations

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
    """The structural schema of a model. Raises ValueError for what Kubernetes cannot express."""
    return _merged(expanded_schema(model))


def expanded_schema(model: type[BaseModel]) -> Schema:
    """The schema of a model with references written out. A tagged union stands as
    `{"tag": field, "arms": {value: schema}}`."""
    schema = model.model_json_schema(
        by_alias=True, ref_template="{model}", schema_generator=WithDescriptions
    )
    return _expand(schema, schema.get("$defs", {}))


def _expand(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    schema = _dereference(schema, definitions)
    if "oneOf" in schema:
        return _expand_union(schema, definitions)
    if "anyOf" in schema:
        return _int_or_word(schema)
    if "const" in schema:
        schema = {**schema, "enum": [schema["const"]]}
    result = {key: schema[key] for key in schema if key in _KEPT or key.startswith("x-")}
    result = _plain_numbers(_plain_description(result))
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
    """Without references and without the null arm of an optional field."""
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return _dereference({**definitions[schema["$ref"]], **own}, definitions)
    arms = [arm for arm in schema.get("anyOf", []) if arm.get("type") != "null"]
    if len(arms) == 1:
        own = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return _dereference({**arms[0], **own}, definitions)
    return schema


def _int_or_word(schema: Schema) -> Schema:
    """A number or a certain word, for which Kubernetes has a type of its own."""
    number, word = ({arm.get("type"): arm for arm in schema["anyOf"]}.get(kind, {})
                    for kind in ("integer", "string"))  # fmt: skip
    arms = len([arm for arm in schema["anyOf"] if arm.get("type") != "null"])
    if not number or "const" not in word or arms != 2:
        raise ValueError(f"no structural form for {schema['anyOf']}")
    least, most, text = number["minimum"], number["maximum"], word["const"]
    rule = f"type(self) == int ? self >= {least} && self <= {most} : self == '{text}'"
    return {
        **_plain_description({"description": schema.get("description", "")}),
        "maxLength": len(text),
        "x-kubernetes-int-or-string": True,
        "x-kubernetes-validations": [
            {"rule": rule, "message": f"a number from {least} to {most}, or '{text}'"}
        ],
    }


def _expand_union(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    tag = schema["discriminator"]["propertyName"]
    arms = {}
    for arm in schema["oneOf"]:
        expanded = _expand(arm, definitions)
        arms[expanded["properties"][tag]["enum"][0]] = expanded
    return _plain_description(
        {"tag": tag, "arms": arms, "description": schema.get("description", "")}
    )


def _plain_description(schema: Schema) -> Schema:
    if text := schema.get("description"):
        return {**schema, "description": " ".join(text.split())[:_MAX_DESCRIPTION]}
    return schema


def _plain_numbers(schema: Schema) -> Schema:
    """Kubernetes speaks OpenAPI 3.0, where an exclusive bound is a flag beside the bound."""
    for flag, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if flag in schema:
            schema = {**schema, bound: schema[flag], flag: True}
    return schema


def _merged(schema: Schema, *, listed: bool = False) -> Schema:
    """The schema with each union as one object, and without defaults that are no scalars or lie
    below a list: tools that compare an object with its manifest take lists as a whole."""
    if "arms" in schema:
        schema = _merge_union(schema)
    result = {key: value for key, value in schema.items() if key != "default"}
    if not listed and not isinstance(schema.get("default"), dict | list | None):
        result["default"] = schema["default"]
    if "properties" in schema:
        children = schema["properties"].items()
        result["properties"] = {name: _merged(child, listed=listed) for name, child in children}
    for key in _NESTED:
        if key in schema:
            result[key] = _merged(schema[key], listed=listed or key == "items")
    return result


def _merge_union(union: Schema) -> Schema:
    merged = merge_arms(union["tag"], union["arms"])
    about = (f"{value}: {arm.get('description', '')}" for value, arm in union["arms"].items())
    merged["description"] = " ".join([union["description"], *about]).strip()
    return _plain_description(merged)


def merge_arms(tag: str, arms: dict[str, Schema], path: str = "self") -> Schema:
    """One object schema for several: the fields of all, and a rule for each that some lack."""
    names = {name: None for arm in arms.values() for name in arm["properties"]}
    rules: list[Schema] = []
    properties = {}
    for name in names:
        holders = {value: arm["properties"][name] for value, arm in arms.items()
                   if name in arm["properties"]}  # fmt: skip
        properties[name] = _merge_field(tag, name, holders, f"{path}.{name}", rules)
        if len(holders) < len(arms):
            # a default would appear in the arms that lack the field
            properties[name].pop("default", None)
            rules.append(_only_for(tag, f"{path}.{name}", list(holders)))
    required = [set(arm.get("required", [])) for arm in arms.values()]
    for value, arm in arms.items():
        own = sorted(set(arm.get("required", [])) - set.intersection(*required))
        rules += [_required_for(tag, f"{path}.{name}", value) for name in own]
    rules += _rules_of_arms(tag, arms, path)
    merged: Schema = {"type": "object", "properties": properties}
    if common := sorted(set.intersection(*required), key=list(names).index):
        merged["required"] = common
    if rules:
        merged["x-kubernetes-validations"] = rules
    return merged


def _rules_of_arms(tag: str, arms: dict[str, Schema], path: str) -> list[Schema]:
    """Return the rules of the models, each for the arms that have it."""
    holders: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for value, arm in arms.items():
        for one in arm.get(_RULES, []):
            rule = re.sub(r"\bself\b", path, one["rule"])
            holders.setdefault(rule, []).append(value)
            messages[rule] = one["message"]
    return [
        {"rule": f"!(self.{tag} in {values}) || ({rule})", "message": messages[rule]}
        for rule, values in holders.items()
    ]


def _merge_field(
    tag: str, name: str, holders: dict[str, Schema], path: str, rules: list[Schema]
) -> Schema:
    first, *others = holders.values()
    if all(_shape(other) == _shape(first) for other in others):
        return dict(first)
    if all("properties" in holder for holder in holders.values()):
        return _merge_objects(tag, name, holders, path, rules)
    if name != tag and all("enum" in holder for holder in holders.values()):
        rules += [_enum_for(tag, path, value, arm["enum"]) for value, arm in holders.items()]
    elif name != tag:
        raise ValueError(f"the arms of {tag} disagree about {path}")
    values = [value for holder in holders.values() for value in holder["enum"]]
    kept = {key: value for key, value in first.items() if key != "default"}
    return {**kept, "enum": list(dict.fromkeys(values))}


def _merge_objects(
    tag: str, name: str, holders: dict[str, Schema], path: str, rules: list[Schema]
) -> Schema:
    """Objects that differ by arm: merged as well, their rules moved up to where the tag is."""
    merged = merge_arms(tag, holders, path)
    rules += [
        {**rule, "rule": f"!has({path}) || ({rule['rule']})"}
        for rule in merged.pop("x-kubernetes-validations", [])
    ]
    return {**merged, "description": holders[next(iter(holders))].get("description", name)}


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
