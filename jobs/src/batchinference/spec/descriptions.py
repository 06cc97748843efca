"""Descriptions of fields, which are the docstrings below them.

They are looked for when schemas are generated, and only then: pydantic's own
`use_attribute_docstrings` reads the source of every class in every process that imports the models.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema


class WithDescriptions(GenerateJsonSchema):
    """Pydantic's JSON schema with the description of each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        made = super().model_schema(schema)
        model = schema["cls"]
        for name, text in descriptions(model).items():
            field = model.model_fields.get(name)
            if field is not None:
                made["properties"][field.alias or name].setdefault("description", text)
        return made


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Field to description, for a model with all that it inherits."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            found |= _described_in(kind.__module__).get(kind.__name__, {})
    return found


@cache
def _described_in(module: str) -> dict[str, dict[str, str]]:
    """Class to field to description, for the classes of a module."""
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
