"""Types of fields with a path or URI of data, or with a prefix of URIs, and their checks."""

import re
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from batchinference.spec.address_credentials import HIDDEN, OF_PATHS, refuse
from batchinference.spec.addresses import SCHEMES, local_path, scheme_of
from batchinference.spec.base import invalid

_INCOMPLETE_SCHEME = re.compile(rf"^({'|'.join(SCHEMES)}):(?!//)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


_OTHER_SCHEMES = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az"),
    "hf": "Use the format huggingface",
}
"""Schemes of other tools, and what to write instead."""
_OTHER_ADDRESSES = (
    (r"https?://([\w.-]+?)\.s3[\w.-]*\.amazonaws\.com/(.*)", r"s3://\1/\2"),
    (r"https?://s3[\w.-]*\.amazonaws\.com/(.*)", r"s3://\1"),
    (r"https?://storage\.(?:googleapis|cloud\.google)\.com/(.*)", r"gs://\1"),
    (r"https?://([\w-]+)\.blob\.core\.windows\.net/(.*)", r"az://\2, and set storage: "
     r"{endpoint: 'https://\1.blob.core.windows.net'}"),
    (r"dbfs:/+(.*)", r"/dbfs/\1, if it is mounted there, or the address of the store"),
)  # fmt: skip
"""Patterns of HTTP addresses of object stores and of dbfs: paths, and what to write instead."""
_DOWNLOAD = "Download it and write its path, or copy it to an object store (s3://, gs:// or az://)"
_NO_ESCAPES = ", which '\\' makes in double quotes. Write '/' instead of '\\'"
NO_CREDENTIALS = refuse(OF_PATHS, "must not contain credentials. Set them in the environment")
_ADDRESS = Annotated[str, Field(min_length=1, max_length=1024), *NO_CREDENTIALS]


def _fix_of_other_address(uri: str) -> str:
    """Return the fix for an address in the syntax of another tool; empty for other addresses."""
    for pattern, address in _OTHER_ADDRESSES:
        if match := re.fullmatch(pattern, uri):
            return f"Write {match.expand(address)}"
    scheme, rest = scheme_of(uri), local_path(uri)
    other, bucket = _OTHER_SCHEMES.get(scheme, ""), rest.partition("/")[0]
    if " " in other:
        return other
    if other == "az" and re.fullmatch(r"[a-z0-9-]+@[\w.-]+", bucket):  # CONTAINER@ACCOUNT
        container, _, host = bucket.partition("@")
        account = host.partition(".")[0]
        fix = f"Write az://{container}/{rest.partition('/')[2]}"
        return f"{fix}, and set storage: {{endpoint: 'https://{account}.blob.core.windows.net'}}"
    return f"Write {other}://{rest}" if other and "@" not in rest else ""


def _check_uri(uri: str, http_fix: str = "") -> str:
    """Return the URI. Raises a validation error if invalid. `http_fix` is for HTTP addresses."""
    if match := _INCOMPLETE_SCHEME.match(uri):
        slashes = "" if match[1].lower() == "file" else "/"
        fixed = f"{match[1]}://{uri[match.end() :].lstrip(slashes)}"
        raise invalid(f"an address begins with '{match[1]}://'. Write {fixed}")
    scheme = scheme_of(uri)
    bucket = (rest := local_path(uri)).split("/")[0]
    if fix := _fix_of_other_address(uri):
        raise invalid(f"the scheme '{uri.partition(':')[0]}://' is not supported. {fix}")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        fix = http_fix if http_fix and scheme[:4] == "http" else f"Use a path or one of {known}"
        raise invalid(f"the scheme '{scheme}://' is not supported. {fix}")
    if scheme != "file" and not bucket:
        raise invalid(f"an address with {scheme}:// needs a bucket. Write {scheme}://BUCKET/PATH")
    if not rest:
        raise invalid("a file:// address needs a path")
    if uri[0] in "\u201c\u201d\u2018\u2019":
        raise invalid("it begins with a typographic quote. Write ' instead")
    if _CONTROL.search(uri):
        fix = "" if uri.endswith("\n") or scheme != "file" else _NO_ESCAPES
        raise invalid(f"an address must not contain control characters{fix}")
    return uri


Uri = Annotated[_ADDRESS, AfterValidator(_check_uri)]
InputUri = Annotated[_ADDRESS, AfterValidator(partial(_check_uri, http_fix=_DOWNLOAD))]


def check_host(address: str) -> str:
    """Return the address. Raises a validation error if its host is invalid."""
    try:
        urlsplit(address)
    except ValueError:
        raise invalid("its host is invalid. Write a name, or an address such as [::1]") from None
    return address


def check_port(address: str) -> str:
    """Return the address. Raises a validation error if its host or its port is invalid."""
    parts = urlsplit(check_host(address))
    try:
        parts.port  # noqa: B018 - this parses the port
    except ValueError:
        raise invalid("its port is invalid. Write one from 1 to 65535") from None
    return address


URI_PREFIX = "^([a-z][a-z0-9]*://[^/@]+(/|$)|/)"
HTTP_PREFIX = "^https?://[^/@]+(/|$)"


def _check_no_user(prefix: object) -> object:
    if isinstance(prefix, str) and re.match("[^/]*://[^/]*@", prefix):
        raise invalid("must not contain credentials. Remove them", HIDDEN)
    return prefix


_CHECKS = (BeforeValidator(_check_no_user), AfterValidator(check_port))
UriPrefix = Annotated[str, Field(pattern=URI_PREFIX, max_length=2048), *_CHECKS]
HttpPrefix = Annotated[str, Field(pattern=HTTP_PREFIX, max_length=2048), *_CHECKS]
