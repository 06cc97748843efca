"""Reads the descriptions of fields from the docstrings below them, when schemas are generated.

pydantic's `use_attribute_docstrings` would read the source code of each class in each process that
imports the models.
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
    """Generates the JSON schema of a model with the description of each field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
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
    """Return the descriptions of all classes of a module, by class and field."""
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
