"""Paths and URIs of data, with the storage schemes that are supported."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from batchinference.spec.addresses import SCHEMES, local_path, scheme_of
from batchinference.spec.base import refusal, without_credentials

_INCOMPLETE_SCHEME = re.compile(rf"^({'|'.join(SCHEMES)}):(?!//)", re.IGNORECASE)
HIDDEN = "uri_hidden"
"""The type of errors about a value that may contain a password. Messages do not show the value."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


_OTHER_SCHEMES = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az"),
    "hf": "Use the format huggingface",
}
"""Schemes of other tools, and what to write instead."""
_OF_WEB = (
    (r"https?://([\w.-]+?)\.s3[\w.-]*\.amazonaws\.com/(.*)", r"s3://\1/\2"),
    (r"https?://s3[\w.-]*\.amazonaws\.com/(.*)", r"s3://\1"),
    (r"https?://storage\.(?:googleapis|cloud\.google)\.com/(.*)", r"gs://\1"),
    (r"https?://([\w-]+)\.blob\.core\.windows\.net/(.*)", r"az://\2, and storage: "
     r"{endpoint: 'https://\1.blob.core.windows.net'}"),
    (r"dbfs:/+(.*)", r"/dbfs/\1, if it is mounted there, or the address of the store"),
)  # fmt: skip
"""Addresses of object stores in the web and of file systems, and what to write instead."""
_DOWNLOAD = "Download it and write its path, or copy it to an object store (s3://, gs:// or az://)"
_FORM = Field(
    min_length=1,
    max_length=1024,
    json_schema_extra=without_credentials(f"(?i)^({'|'.join(SCHEMES[1:])})://[^/]*@"),
)


def _other_address(uri: str) -> str:
    """Return what to write instead of an address of other tools; empty if that is unknown."""
    for pattern, address in _OF_WEB:
        if found := re.fullmatch(pattern, uri):
            return f"Write {found.expand(address)}"
    scheme, rest = scheme_of(uri), local_path(uri)
    other, bucket = _OTHER_SCHEMES.get(scheme, ""), rest.partition("/")[0]
    if " " in other:
        return other
    if other == "az" and re.fullmatch(r"[a-z0-9-]+@[\w.-]+", bucket):  # CONTAINER@ACCOUNT
        container, _, host = bucket.partition("@")
        account = host.partition(".")[0]
        fix = f"Write az://{container}/{rest.partition('/')[2]}"
        return f"{fix}, and storage: {{endpoint: 'https://{account}.blob.core.windows.net'}}"
    return f"Write {other}://{rest}" if other and "@" not in rest else ""


def _check_uri(uri: str, of_web: str = "") -> str:
    """Return the address. `of_web` is what to do about another one of HTTP."""
    if match := _INCOMPLETE_SCHEME.match(uri):
        slashes = "" if match[1].lower() == "file" else "/"
        fixed = f"{match[1]}://{uri[match.end() :].lstrip(slashes)}"
        raise refusal(f"an address begins with '{match[1]}://'. Write {fixed}")
    scheme = scheme_of(uri)
    bucket = (rest := local_path(uri)).split("/")[0]
    if fix := _other_address(uri):
        raise refusal(f"the scheme '{uri.partition(':')[0]}://' is not supported. {fix}")
    if scheme != "file" and "@" in bucket:
        raise refusal("must not contain credentials. Set them in the environment", HIDDEN)
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        fix = of_web if of_web and scheme[:4] == "http" else f"Use a path or one of {known}"
        raise refusal(f"the scheme '{scheme}://' is not supported. {fix}")
    if scheme != "file" and not bucket:
        raise refusal(f"an address with {scheme}:// needs a bucket. Write {scheme}://BUCKET/PATH")
    if not rest:
        raise refusal("a file:// address needs a path")
    if _CONTROL.search(uri):
        raise refusal("an address must not contain control characters")
    return uri


Uri = Annotated[str, _FORM, AfterValidator(_check_uri)]
InputUri = Annotated[str, _FORM, AfterValidator(partial(_check_uri, of_web=_DOWNLOAD))]


def _check_port(prefix: str) -> str:
    """Return the prefix. Raises a refusal if its port is invalid."""
    try:
        urlsplit(prefix).port  # noqa: B018 - this parses the port
    except ValueError:
        raise refusal("not a valid prefix: its port is invalid") from None
    return prefix


PREFIX = r"^([a-z][a-z0-9]*://[^/]|/)"
URL_PREFIX = r"^https?://[^/]"
Prefix = Annotated[str, Field(pattern=PREFIX, max_length=2048), AfterValidator(_check_port)]
UrlPrefix = Annotated[str, Field(pattern=URL_PREFIX, max_length=2048), AfterValidator(_check_port)]
