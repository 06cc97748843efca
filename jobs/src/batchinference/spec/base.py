"""The base class, patterns and types that all models of the spec share."""

from collections.abc import Callable
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import PydanticCustomError

_WORD = "[A-Za-z_][A-Za-z0-9_]*"
_NAME = rf"{_WORD}(\.{_WORD})*"
MODULE_PATH = f"^{_NAME}:{_NAME}$"
MEMORY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"
DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_DNS_PART = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN = rf"^{_DNS_PART}(\.{_DNS_PART})*$"
_NAME_PART = "[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_QUALIFIED = rf"({_DNS_PART}(\.{_DNS_PART})*/)?{_NAME_PART}"
LABEL_KEY = f"^{_QUALIFIED}$"
A_LABEL_KEY = "a label key such as pool or example.com/pool, whose name has at most 63 characters"
CONTROLLER = rf"^{_DNS_PART}(\.{_DNS_PART})*/{_NAME_PART}$"
"""The pattern of a controller name, which begins with the domain of its owner."""
REASON = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
"""The pattern of the reason of a condition, as defined by Kubernetes."""
TAINT_KEY = f"^({_QUALIFIED})?$"
LABEL_VALUE = "^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$"
DATA_KEY = "^[-._A-Za-z0-9]+$"
ENV_NAME = r"^[-._a-zA-Z][-._a-zA-Z0-9]*$"
DIRECTORY = r"^(/(\.?[^/.:][^/:]*|\.\.[^/:]+)?)+$"
"""An absolute path. Kubernetes rejects or resolves paths with `.`, `..` or `:`."""
_PATH_PART = r"(\.?[^/.:][^/:]*|\.\.[^/:]+)"
RELATIVE_PATH = f"^{_PATH_PART}(/{_PATH_PART})*$"
DELIMITER = r"^[\x01-\t\x0b\x0c\x0e-~]$"
"""An ASCII character except NUL, line ends and DEL. U+0001 is valid, because Hive uses it."""
PUNCTUATION = "^[!-/:-@\\[-`{-~]?$"
"""An empty text, or an ASCII punctuation character, such as a quote in CSV files."""
WRITTEN_DELIMITER = r"^[\t!#-*,/;-@\[-`{-~]$"
"""A delimiter that is not in numbers, dates and booleans, which are written without quotes."""
SQL_NAME = "^[A-Za-z_][A-Za-z0-9_.]*$"
HTTP_URL = r"^https?://[^\x00-\x20]+$"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
WEBHOOK_PREFIX = rf"^https?://[A-Za-z0-9.-]+(:{_PORT})?/([^?#%\x00-\x20]*/)?$"
IMAGE_PREFIX = "^[^/ ]+/[^ ]*$"
CRON = "^[-0-9A-Za-z*/,#]+( +[-0-9A-Za-z*/,#]+){4}$"
TIME_ZONE = "^[A-Z][-A-Za-z0-9_+]*(/[-A-Za-z0-9_+]+)*$"
PARAMETER_NAME = "^[a-z][a-z0-9_]*$"
VARIABLE = "^[A-Z_][A-Z0-9_]*$"
WEIGHTS = "^[A-Z][A-Z0-9_]*$"
ENDPOINT = r"^https?://[^/@?#\x00-\x20]+(/[^@?#\x00-\x20]*)?$"
"""Excludes U+0000 to U+0020, and not `\\s`, which differs between Python, Rust and Go."""
ACCELERATOR = "^[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
KUBERNETES_RESOURCE = f"^[a-z0-9][-.a-z0-9]*/{_NAME_PART}$"
DEVICE_KIND = "^[a-z][a-z0-9]*$"
START_VALUE = "^[-A-Za-z0-9_./:,=@%+]+$"


def invalid(message: str, kind: LiteralString = "refused") -> PydanticCustomError:
    """Return the error to raise in a validator. `message` is for the author of the document."""
    return PydanticCustomError(kind, "{message}", {"message": message})


def accepted_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a validator that refuses a text if `parse` raises ValueError for it."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise invalid(str(error)) from None
        return text

    return AfterValidator(check)


def required(is_valid: Callable[[Any], object], message: str) -> AfterValidator:
    """Return a validator that refuses a value, with this message, if `is_valid` is false for it."""

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise invalid(message)
        return value

    return AfterValidator(check)


def _check_unique(names: list[str]) -> list[str]:
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise invalid(f"'{duplicates[0]}' is named twice. Remove one of them")
    return names


def keyed(key: str, max_items: int, *more_keys: str) -> tuple[Any, Any]:
    """Return the annotations of a list whose items differ in the fields `key` and `more_keys`.
    Kubernetes merges the list by these fields, and several clients can add items."""
    keys = [key, *more_keys]

    def check(items: list[Any]) -> list[Any]:
        values = [tuple(getattr(item, to_snake(each)) for each in keys) for item in items]
        if repeated := [each for each in values if values.count(each) > 1]:
            name, value = " and ".join(keys), " ".join(map(str, repeated[0]))
            raise invalid(f"two items have the {name} '{value}'. Remove one of them")
        return items

    extra: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    return Field(max_length=max_items, json_schema_extra=extra), AfterValidator(check)


ColumnName = Annotated[str, Field(min_length=1, max_length=128)]
Unique = AfterValidator(_check_unique)
Columns = Annotated[list[ColumnName], Field(min_length=1, max_length=256), Unique]
Text = Annotated[str, Field(max_length=2048)]
Variable = Annotated[str, Field(pattern=VARIABLE, max_length=128)]
ModulePath = Annotated[str, Field(pattern=MODULE_PATH, max_length=256)]
MONEY = r"^[0-9]{1,15}(\.[0-9]{1,9})?$"
Money = Annotated[str, Field(pattern=MONEY, max_length=25)]
"""An amount of money: a decimal number as text, because JSON numbers are not exact."""


class SpecModel(BaseModel):
    """Base class of models with camelCase fields. Unknown fields and wrong types are errors."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        defer_build=True,  # saves time in workers, which check no documents
        extra="forbid",
        frozen=True,
        strict=True,
    )

    def model_post_init(self, _: Any) -> None:
        """Call `_check`. Validators of pydantic would need a MiB more memory for all models."""
        self._check()

    def _check(self) -> None:
        """Raise a validation error if the values of several fields do not fit together. A subclass
        that extends this check calls it first."""
