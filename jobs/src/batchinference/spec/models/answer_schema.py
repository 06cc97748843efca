"""The field `schema` of a model: the JSON of its answers, and the type of the output column."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from batchinference.spec.arguments import Arguments, names_in
from batchinference.spec.base import ColumnName, SpecModel, invalid, keyed
from batchinference.spec.column_types import MAX_DEPTH, ColumnType, TypeText, parse_type
from batchinference.spec.value_fixes import above_max

MAX_TYPES = 1000
"""Maximum number of typed values in a schema, at any depth. References can repeat values."""
_SHOWN = 200
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_APPLIED = ("items", "prefixItems", "additionalProperties", "allOf")
"""Keywords, besides `properties` and `$ref`, with schemas that must accept a value."""
_PAIRS = (
    *itertools.product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
    *((f"min{name}", f"max{name}") for name in ("Length", "Items", "Properties", "Contains")),
)
"""Keywords of a lower and of an upper bound."""
_REFUSED = (
    *("$id", "$anchor", "$dynamicRef", "uniqueItems"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
"""Refused keywords: they change where a reference leads, or their checks take quadratic time."""
_REFERENCE = re.compile(r"#(/(\$defs|definitions)/[\w.-]+)?", re.ASCII)
_ANY_FIELDS = {*_ALTERNATIVES, "if", "patternProperties", "dependentSchemas"}
"""Keywords with which an object may have fields other than its `properties`."""
_TYPES: dict[Any, ColumnType] = {
    **{"string": "string", "integer": "int64", "number": "float64", "boolean": "bool"},
    **{str: "string", int: "int64", float: "float64", bool: "bool"},
}
"""The types of columns, by the type in JSON Schema or the Python type of a value of `enum`."""
_FORMATS = {"date": "date", "timestamp": "date-time"}
Bound = Annotated[float, Field(ge=-(10**15), le=10**15)]
"""A plain number, because a quantity has no sign and at most three decimal places."""


class AnswerField(SpecModel):
    """A field that every answer has."""

    name: ColumnName
    """The name. The model generates the fields in the order of the list."""
    type: TypeText
    """The type, such as `string`, `list<string>` or `json` (docs/formats.md lists all types)."""
    enum: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=256)] = []
    """The values that a `string` may have."""
    minimum: Bound | None = None
    """The smallest number."""
    maximum: Bound | None = None
    """The largest number."""
    nullable: bool = False
    """Whether the value may be null."""
    description: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """What the field means, for the model."""

    def _check(self) -> None:
        if self.enum and self.type.strip() != "string":
            raise invalid("enum is for the type string. For other values, use jsonSchema")
        bounded = _schema_of(parse_type(self.type)).get("type") in ("integer", "number")
        if not bounded and (self.minimum, self.maximum) != (None, None):
            raise invalid("minimum and maximum are for numbers. Remove them")
        _check_pairs(self._bounds)

    @property
    def _bounds(self) -> dict[str, int | float]:
        """Return `minimum` and `maximum` as in JSON Schema, without those that are not set."""
        bounds = {"minimum": self.minimum, "maximum": self.maximum}
        return {
            name: int(bound) if bound.is_integer() else bound
            for name, bound in bounds.items()
            if bound is not None
        }

    @property
    def document(self) -> dict[str, Any]:
        """Return the field as JSON Schema."""
        schema = _schema_of(parse_type(self.type)) | self._bounds
        if self.description is not None:
            schema["description"] = self.description
        if self.enum:
            schema["enum"] = [*self.enum, *([None] if self.nullable else [])]
        if self.nullable and "type" in schema:
            schema["type"] = [schema["type"], "null"]
        return schema


Fields = Annotated[list[AnswerField], Field(min_length=1), *keyed("name", 64)]


_NAMES = ("string", "number", "integer", "boolean", "enum")
"""Types of fields, as users write them."""


class AnswerSchema(SpecModel):
    """The JSON that a model answers with: exactly one of `fields` and `jsonSchema`."""

    fields: Fields | None = None
    """The fields of the answers, in their order. An answer with other fields is invalid."""
    json_schema: Arguments | None = None
    """A JSON Schema (2020-12) of the answers. References must stay within the schema, as
    `#/$defs/NAME`. Kubernetes sorts the keys, so the order of fields may differ."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_mapping(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("fields"), dict):
            name = next(iter(value["fields"]), "NAME")
            raise invalid(f"fields: expected a list. Write [{{name: {name}, type: TYPE}}]")
        if isinstance(value, dict) and "properties" in value:
            raise invalid("it is a JSON Schema. Write jsonSchema: {...} with this in it")
        if isinstance(value, dict) and value and {*map(str, value.values())} <= {*_NAMES}:
            fields = ", ".join(f"{{name: {name}, type: {kind}}}" for name, kind in value.items())
            raise invalid(f"it has no fields. Write {{fields: [{fields[:200]}]}}")
        return value

    def _check(self) -> None:
        if (self.fields is None) == (self.json_schema is None):
            raise invalid("schema has exactly one of fields and jsonSchema")
        if self.json_schema is not None:
            _check_schema(self.json_schema)
            for path, part in _applied_parts(self.json_schema):
                _check_pairs(part, f"{'.'.join(path)}: ")
            _ColumnTypes(self.json_schema).of(self.json_schema)

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON Schema for the model and for the check of its answers."""
        if self.json_schema is not None:
            return self.json_schema
        return _object({field.name: field.document for field in self.fields or ()})

    @property
    def column_type(self) -> ColumnType:
        """Return the type of the answers. Parts that fit no other type have the type `json`."""
        if self.json_schema is not None:
            return _ColumnTypes(self.json_schema).of(self.json_schema)
        return {field.name: parse_type(field.type) for field in self.fields or ()}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


def _schema_of(kind: ColumnType) -> dict[str, Any]:
    """Return the JSON Schema of the values of a type."""
    if isinstance(kind, dict):
        return _object({name: _schema_of(field) for name, field in kind.items()})
    if isinstance(kind, list):
        return {"type": "array", "items": _schema_of(kind[0])}
    name = kind.partition("<")[0]
    if name in _FORMATS:
        return {"type": "string", "format": _FORMATS[name]}
    if name in ("json", "string", "bool"):
        return {"json": {}, "string": {"type": "string"}, "bool": {"type": "boolean"}}[name]
    return {"type": "integer" if "int" in name else "number"}


class _ColumnTypes:
    """Converts a JSON Schema to the type of a column."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._count = root, 0

    def of(self, schema: Any, above: tuple[str, ...] = ()) -> ColumnType:
        """Return the type for a schema. `above` has an item for each enclosing schema: its
        reference, or an empty text. Raises a validation error above MAX_TYPES values."""
        self._count += 1
        if self._count > MAX_TYPES:
            raise invalid(f"jsonSchema: more than {MAX_TYPES} values with types. Use a smaller one")
        if not isinstance(schema, dict) or len(above) > MAX_DEPTH:
            return "json"
        if reference := schema.get("$ref"):
            inner = _resolved(self._root, reference)
            return "json" if reference in above else self.of(inner, (*above, reference))
        declared = schema.get("type", [])
        kinds = {*([declared] if isinstance(declared, str) else declared)} - {"null"}
        if not kinds:
            return self._of_alternatives(schema, above)
        if kinds == {"object"}:
            return self._of_object(schema, above)
        if kinds == {"array"}:
            is_list = "items" in schema and "prefixItems" not in schema
            return [self.of(schema["items"], (*above, ""))] if is_list else "json"
        return _TYPES[kinds.pop()] if len(kinds) == 1 else "json"

    def _of_object(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> ColumnType:
        is_open = schema.get("additionalProperties", False) is not False
        if is_open or not schema.get("properties") or not _ANY_FIELDS.isdisjoint(schema):
            return "json"
        fields = schema["properties"].items()
        return {name: self.of(field, (*above, "")) for name, field in fields}

    def _of_alternatives(self, schema: Mapping[str, Any], above: tuple[str, ...]) -> ColumnType:
        """Return the type of all alternatives or values of `enum`; `json` if types differ."""
        for parts in (schema[keyword] for keyword in _ALTERNATIVES if keyword in schema):
            others = (part for part in parts if part != {"type": "null"})
            return _common([self.of(part, (*above, "")) for part in others])
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return _common([_TYPES.get(type(value), "json") for value in values if value is not None])


def _common(types: list[ColumnType]) -> ColumnType:
    return types[0] if types and all(kind == types[0] for kind in types) else "json"


def _check_schema(schema: dict[str, Any]) -> None:
    """Raise a validation error if a JSON Schema is invalid or not supported."""
    from jsonschema import Draft202012Validator  # imported only for jobs with a schema
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, ["jsonSchema", *error.absolute_path]))
        fix = "Use JSON Schema 2020-12"
        raise invalid(f"{where}: not a valid schema ({error.message[:_SHOWN]}). {fix}") from None
    except RecursionError:
        raise invalid("jsonSchema: a 'pattern' is nested too deep. Use a simpler one") from None
    names = {*names_in(schema)}
    for keyword in (name for name in _REFUSED if name in names):
        raise invalid(f"jsonSchema: '{keyword}' is not supported. Remove it")
    for reference in _references(schema):
        if not _REFERENCE.fullmatch(reference) or _resolved(schema, reference) is None:
            message = f"jsonSchema: '$ref' to '{reference[:_SHOWN]}' leads nowhere"
            raise invalid(f"{message}. Use a schema in it, such as #/$defs/NAME")


def _check_pairs(schema: Mapping[str, Any], prefix: str = "") -> None:
    """Raise a validation error if no answer is valid, because a lower bound is above an upper
    bound. `prefix` begins the message."""
    for low, high in _PAIRS:
        bounds: tuple[Any, Any] = (schema.get(low), schema.get(high))
        if not all(map(_is_number, bounds)):
            continue
        lower, upper = bounds
        if lower > upper:
            raise invalid(prefix + above_max(lower, upper, low, high))
        if lower == upper and "exclusive" in low + high:
            fix = f"Set {high} above {lower}, or {low} below {upper}"
            raise invalid(f"{prefix}no number is between {low} and {high} ({lower}). {fix}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _applied_parts(root: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the path and the content of each schema in a schema that must accept a value. Those
    below `not`, or in a branch of `anyOf`, need not: answers can be valid without them."""
    unvisited: list[tuple[tuple[str, ...], Any]] = [(("jsonSchema",), root)]
    references: set[str] = set()
    while unvisited:
        path, part = unvisited.pop()
        if isinstance(part, list):
            unvisited += (((*path[:-1], f"{path[-1]}[{n}]"), each) for n, each in enumerate(part))
        if not isinstance(part, dict):
            continue
        yield path, part
        unvisited += (((*path, keyword), part[keyword]) for keyword in _APPLIED if keyword in part)
        fields = part.get("properties", {}).items()
        unvisited += (((*path, "properties", name), field) for name, field in fields)
        reference = part.get("$ref")
        if reference and reference not in references:
            references.add(reference)
            parts_of_path = ("jsonSchema", *reference.split("/")[1:])
            unvisited.append((parts_of_path, _resolved(root, reference)))


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict) and isinstance(part.get("$ref"), str):
        yield part["$ref"]
    if isinstance(part, dict | list):
        for child in part.values() if isinstance(part, dict) else part:
            yield from _references(child)


def _resolved(root: Mapping[str, Any], reference: str) -> Any:
    """Return the schema that a reference names; None if there is none."""
    if reference == "#":
        return root
    _, keyword, name = reference.split("/")
    return root.get(keyword, {}).get(name)
