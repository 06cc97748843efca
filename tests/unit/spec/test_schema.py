"""Structural schemas: the variants of a union are merged, and rules separate their fields."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from batchinference.spec.crd_schema import structural_schema
from plugins.messages import Messages


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


def test_long_description_is_truncated_on_one_line() -> None:
    class Long(BaseModel):
        long: Annotated[int, Field(description="word\n  " * 1000)]

    description = structural_schema(Long)["properties"]["long"]["description"]
    assert len(description) == 1024
    assert description.startswith("word word word")
