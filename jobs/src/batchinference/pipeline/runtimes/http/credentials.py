"""Credentials of an endpoint. They come from the environment and never appear in messages."""

from __future__ import annotations

import os

from batchinference.pipeline.errors import ModelLoad
from batchinference.spec.models import HttpModel


class Credentials:
    """The request headers of a model, including its credentials."""

    def __init__(self, model: HttpModel) -> None:
        self._values = {name: _value(name) for name in _variables(model)}
        self.headers = {
            header: self._values[variable] for header, variable in model.headers_from.items()
        }
        if model.api_key_env is not None:
            self.headers["Authorization"] = f"Bearer {self._values[model.api_key_env]}"

    def hide(self, text: str) -> str:
        """Return the text with the credentials masked, because a response may repeat them."""
        for value in self._values.values():
            text = text.replace(value, "***")
        return text


def _variables(model: HttpModel) -> list[str]:
    named = list(model.headers_from.values())
    return [*named, model.api_key_env] if model.api_key_env is not None else named


def _value(variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ModelLoad(
            f"the environment variable {variable}, which holds a key of the endpoint, is not set: "
            "export it, or on a cluster fill it from a Secret in cluster.env"
        )
    return value
