"""Paths and URIs of data, with the storage schemes that are supported."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from batchinference.spec.addresses import SCHEMES, local_path, scheme_of
from batchinference.spec.base import without_credentials

_INCOMPLETE_SCHEME = re.compile(rf"^({'|'.join(SCHEMES)}):(?!//)", re.IGNORECASE)
HIDDEN = "uri_hidden"
"""The type of errors about a value that may contain a password. Messages do not show the value."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _check_uri(uri: str) -> str:
    if match := _INCOMPLETE_SCHEME.match(uri):
        raise PydanticCustomError(
            "uri_scheme", "an address begins with '{scheme}://'", {"scheme": match.group(1)}
        )
    scheme = scheme_of(uri)
    rest = local_path(uri)
    bucket = rest.split("/")[0]
    if scheme != "file" and "@" in bucket:
        raise PydanticCustomError(
            HIDDEN, "must not contain credentials. Set them in the environment", {}
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise PydanticCustomError(
            "uri_scheme",
            "the scheme '{scheme}://' is not supported. Use a path or one of {known}",
            {"scheme": scheme, "known": known},
        )
    if scheme != "file" and not bucket:
        raise PydanticCustomError(
            "uri_bucket",
            "an address with {scheme}:// needs a bucket. Write {scheme}://BUCKET/PATH",
            {"scheme": scheme},
        )
    if not rest:
        raise PydanticCustomError("uri_path", "a file:// address needs a path", {})
    if _CONTROL.search(uri):
        raise PydanticCustomError(
            "uri_control", "an address must not contain control characters", {}
        )
    return uri


Uri = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        json_schema_extra=without_credentials(f"(?i)^({'|'.join(SCHEMES[1:])})://[^/]*@"),
    ),
    AfterValidator(_check_uri),
]


def _check_port(prefix: str) -> str:
    """Return the prefix. Raises PydanticCustomError if its port is invalid."""
    try:
        urlsplit(prefix).port  # noqa: B018 - this parses the port
    except ValueError:
        raise PydanticCustomError("prefix", "not a valid prefix: its port is invalid", {}) from None
    return prefix


PREFIX = r"^([a-z][a-z0-9]*://[^/]|/)"
URL_PREFIX = r"^https?://[^/]"
Prefix = Annotated[
    str,
    Field(pattern=PREFIX, max_length=2048),
    AfterValidator(_check_port),
]
UrlPrefix = Annotated[
    str,
    Field(pattern=URL_PREFIX, max_length=2048),
    AfterValidator(_check_port),
]
