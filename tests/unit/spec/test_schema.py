"""Structural schemas: the variants of a union are merged, and rules separate their fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from batchinference.spec.schema import expanded_schema, structural_schema
from plugins.messages import Messages


class Small(BaseModel):
    """A small one."""

    size: Literal["s"]
    unit: Literal["mm", "cm"] = "mm"
    shared: int
    """The same in all."""
    only_small: str
    details: dict[str, str] = {}


class Large(BaseModel):
    """A large one."""

    size: Literal["l"]
    unit: Literal["cm", "m"] = "m"
    shared: int
    flag: bool = True


class Box(BaseModel):
    size: Annotated[Small | Large, Field(discriminator="size", description="Which.")]


class Inner(BaseModel):
    mine: int = 1


class OtherInner(BaseModel):
    yours: int = 1


class Left(BaseModel):
    side: Literal["left"]
    options: Inner = Inner()


class Right(BaseModel):
    side: Literal["right"]
    options: OtherInner = OtherInner()


class Sided(BaseModel):
    part: Annotated[Left | Right, Field(discriminator="side")]


MERGED: dict[str, Any] = structural_schema(Box)["properties"]["size"]


def test_union_fields_are_merged_into_one_object() -> None:
    assert MERGED["type"] == "object"
    properties = MERGED["properties"]
    assert list(properties) == ["size", "unit", "shared", "only_small", "details", "flag"]
    assert MERGED["description"] == "Which. s: A small one. l: A large one."
    assert MERGED["required"] == ["size", "shared"]
    assert properties["size"]["enum"] == ["s", "l"]
    assert properties["unit"]["enum"] == ["mm", "cm", "m"]
    for name in ("unit", "flag", "details"):
        assert "default" not in properties[name], "only one variant has this default"


def test_nested_objects_of_a_union_are_merged() -> None:
    part = structural_schema(Sided)["properties"]["part"]
    assert list(part["properties"]["options"]["properties"]) == ["mine", "yours"]


class Listed(BaseModel):
    boxes: list[Inner] = []
    box: Inner = Inner()


def test_default_in_a_list_item_is_omitted() -> None:
    listed = structural_schema(Listed)["properties"]
    assert listed["box"]["properties"]["mine"]["default"] == 1
    assert "default" not in listed["boxes"]["items"]["properties"]["mine"]


def test_union_with_conflicting_types_is_refused(messages: Messages) -> None:
    class Number(BaseModel):
        kind: Literal["number"]
        value: int

    class Word(BaseModel):
        kind: Literal["word"]
        value: str

    class Either(BaseModel):
        either: Annotated[Number | Word, Field(discriminator="kind")]

    with messages.raises(ValueError):
        structural_schema(Either)


def test_union_without_a_tag_is_refused(messages: Messages) -> None:
    class Free(BaseModel):
        free: int | str

    with messages.raises(ValueError):
        structural_schema(Free)


def test_nullable_field_is_optional() -> None:
    class Optional(BaseModel):
        maybe: Annotated[int, Field(ge=1)] | None = None
        inner: Inner | None = None

    schema = structural_schema(Optional)
    assert schema["properties"]["maybe"] == {"type": "integer", "minimum": 1}
    assert schema["properties"]["inner"]["properties"] == {
        "mine": {"type": "integer", "default": 1}
    }
    assert "required" not in schema


def test_exclusive_bound_is_a_flag() -> None:
    class Bounded(BaseModel):
        above: Annotated[float, Field(gt=0)]
        below: Annotated[int, Field(lt=9)]

    properties = structural_schema(Bounded)["properties"]
    assert properties["above"] == {"type": "number", "minimum": 0, "exclusiveMinimum": True}
    assert properties["below"] == {"type": "integer", "maximum": 9, "exclusiveMaximum": True}


def test_default_is_omitted_unless_it_is_a_scalar() -> None:
    class Defaults(BaseModel):
        number: int = 7
        flag: bool = False
        many: list[int] = [1]
        inner: Inner = Inner()

    properties = structural_schema(Defaults)["properties"]
    assert {name for name in properties if "default" in properties[name]} == {"number", "flag"}


def test_map_is_free_or_has_one_type_of_value() -> None:
    class Maps(BaseModel):
        free: dict[str, Any]
        typed: dict[str, Annotated[str, Field(max_length=3)]]

    properties = structural_schema(Maps)["properties"]
    assert properties["free"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert properties["typed"]["additionalProperties"] == {"type": "string", "maxLength": 3}


def test_long_description_is_truncated_on_one_line() -> None:
    class Long(BaseModel):
        long: Annotated[int, Field(description="word\n  " * 1000)]

    description = structural_schema(Long)["properties"]["long"]["description"]
    assert len(description) == 1024
    assert description.startswith("word word word")


def test_expanded_schema_keeps_the_variants() -> None:
    union = expanded_schema(Box)["properties"]["size"]
    assert union["tag"] == "size"
    assert list(union["variants"]) == ["s", "l"]
    assert union["variants"]["l"]["required"] == ["size", "shared"]
