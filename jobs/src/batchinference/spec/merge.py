"""Settings laid over others: what one leaves out is taken from the other."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def filled(own: Model, defaults: Model) -> Model:
    """`own` with each field that it leaves out taken from `defaults`.

    Objects and maps are filled in key by key, lists of named things (env, volumes) name by name;
    any other value stands alone.
    """
    fields = type(own).model_fields
    return own.model_copy(
        update={name: _merged(getattr(own, name), getattr(defaults, name)) for name in fields}
    )


def _merged(own: Any, default: Any) -> Any:
    if isinstance(own, BaseModel) and isinstance(default, BaseModel):
        return filled(own, default)
    if isinstance(own, dict) and isinstance(default, dict):
        both = {name: _merged(own[name], default[name]) for name in own.keys() & default.keys()}
        return default | own | both
    if isinstance(own, list) and own and hasattr(own[0], "name"):
        names = {item.name for item in own}
        return [*(item for item in default if item.name not in names), *own]
    return default if own is None or (own == [] and default) else own
