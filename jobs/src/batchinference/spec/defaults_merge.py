"""Merges the settings of a model with defaults."""

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def with_defaults(settings: Model, defaults: Model) -> Model:
    """Return the settings, with values from `defaults` for the fields that are not set.

    Objects and maps are merged by key, and lists of named items (env, volumes) by name. Other
    values replace the default, but an empty list does not. A field is not set if the document lacks
    it, even if the model has a value for it.
    """
    own, fields = settings.model_fields_set, type(settings).model_fields
    update = {
        name: _merge(getattr(settings, name) if name in own else None, getattr(defaults, name))
        for name in fields
        if name in own | defaults.model_fields_set
    }
    return settings.model_copy(update=update)


def _merge(value: Any, default: Any) -> Any:
    """Return the value of a field, merged with its default as `with_defaults` says."""
    if isinstance(value, BaseModel) and isinstance(default, BaseModel):
        return with_defaults(value, default)
    if isinstance(value, dict) and isinstance(default, dict):
        merged = {key: _merge(value[key], default[key]) for key in value.keys() & default.keys()}
        return default | value | merged
    if isinstance(value, list) and value and hasattr(value[0], "name"):
        names = {item.name for item in value}
        return [*(item for item in default if item.name not in names), *value]
    return default if value is None or (value == [] and default) else value
