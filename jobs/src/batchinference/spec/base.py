"""What every model of the specification has in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

_WORD = "[A-Za-z_][A-Za-z0-9_]*"
_NAME = rf"{_WORD}(\.{_WORD})*"
MODULE_PATH = f"^{_NAME}:{_NAME}$"
MEMORY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_DNS_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"^{_DNS_PART}(\.{_DNS_PART})*$"
_QUALIFIED = rf"({_DNS_PART}(\.{_DNS_PART})*/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?"
LABEL_KEY = f"^{_QUALIFIED}$"
CONTROLLER = rf"^{_DNS_PART}(\.{_DNS_PART})*/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
"""The name of a controller, with the domain of its owner."""
REASON = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
"""The reason of a condition, as Kubernetes defines it."""
TAINT_KEY = f"^({_QUALIFIED})?$"
LABEL_VALUE = "^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
DATA_KEY = "^[-._A-Za-z0-9]+$"
ENV_NAME = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
DIRECTORY = r"^(/(\.?[^/.:][^/:]*|\.\.[^/:]+)?)+$"
"""An absolute path without `.`, `..` and `:`, which Kubernetes refuses or resolves."""
DELIMITER = r"^[\t -~]$"
WRITTEN_DELIMITER = r"^[\t!#-*,/;-@\[-`{-~]$"
"""Without the characters of numbers, dates and booleans, which are written without quotes."""
SQL_NAME = "^[A-Za-z_][A-Za-z0-9_.]*$"
HTTP_URL = r"^https?://[^\x00-\x20]+$"
CRON = "^[-0-9A-Za-z*/,#]+( +[-0-9A-Za-z*/,#]+){4}$"
TIME_ZONE = "^[A-Z][-A-Za-z0-9_+]*(/[-A-Za-z0-9_+]+)*$"
PARAMETER_NAME = "^[a-z][a-z0-9_]*$"
VARIABLE = "^[A-Z_][A-Z0-9_]*$"
ENDPOINT = r"^https?://[^/@?#\x00-\x20]+(/[^@?#\x00-\x20]*)?$"
"""Not by `\\s`, which means something else to Python, Rust and Go."""
ACCELERATOR = "^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
KUBERNETES_RESOURCE = "^[a-z0-9][-.a-z0-9]*/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
DEVICE_KIND = "^[a-z][a-z0-9]*$"
START_VALUE = "^[-A-Za-z0-9_./:,=@%+]+$"


def _each_once(names: list[str]) -> list[str]:
    if twice := [name for name in names if names.count(name) > 1]:
        raise PydanticCustomError("twice", "'{name}' is named twice", {"name": twice[0]})
    return names


ColumnName = Annotated[str, Field(min_length=1, max_length=128)]
EachOnce = AfterValidator(_each_once)
Columns = Annotated[list[ColumnName], Field(min_length=1, max_length=256), EachOnce]
Text = Annotated[str, Field(max_length=2048)]
ModulePath = Annotated[str, Field(pattern=MODULE_PATH, max_length=256)]
Cpus = Annotated[float, Field(gt=0, le=1024)]


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """CEL rules for the API server and their messages, as an addition to a JSON schema."""
    found = [{"rule": rule, "message": message} for rule, message in pairs]
    return {"x-kubernetes-validations": found}


class SpecModel(BaseModel):
    """A part of the specification: camelCase fields, nothing unknown, nothing coerced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
    )


class OptionsModel(BaseModel):
    """Options that carry the names Ray Data gives them, hence snake_case."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
