"""Refuses credentials in addresses. Each kind of address has one pattern of credentials. The parser
and the API server search it, because the API server must not store passwords."""

import re
from collections.abc import Iterable
from typing import Any

from pydantic import AfterValidator, Field

from batchinference.spec.base import invalid

REFUSAL = "credentials do not belong in the file"
"""The message of the API server."""
HIDDEN = "uri_hidden"
"""The type of errors about a value that may contain a password. Messages do not show the value."""
_KEYS = (
    "(api|access|account|auth|client|deploy|encryption|private|signing|ssh|subscription)[-_]?key"
)
_BEFORE = "([^=&?;%]|%[^3])*"
"""Matches the beginning of a name, without separators. A search that begins at each separator, and
goes on after the next, would take cubic time."""
_ENCODED = "%(2d|[46][1-9a-f]|[57][0-9a]|5f)"
"""Matches a percent-encoded letter, `-` or `_`. No program encodes these characters in names, and
they could hide the name of a credential."""
_PARTS = f"(secret|passw|passph|pwd|credential|{_KEYS}|{_ENCODED})[^=&?;]*"
_WORDS = f"({_BEFORE}[-_]|admin|database|db|redis|smtp|sql|user)?(pass|pat|sas|sig)|key|code|auth"
_SPECIAL_TOKENS = ("bos", "cls", "eos", "mask", "pad", "sep", "unk")
"""Words before `_token` in settings of tokenizers. Each has at least three letters."""


def _other_ends(words: Iterable[str]) -> str:
    """Return a pattern for the ends of texts that do not end with one of the words."""
    before: dict[str, list[str]] = {}
    for word in filter(None, words):
        before.setdefault(word[-1], []).append(word[:-1])
    longer = [_other_ends(starts) + last for last, starts in before.items() if "" not in starts]
    return f"([^{''.join(before)}]{''.join(f'|{each}' for each in longer)})"


def _query(token: str, short_token: str) -> str:
    """Return a pattern that matches the name of a credential in the query of a URL. `=` may be
    `%3D`, as in connection strings of ODBC. `max_tokens`, `token_type` and `authSource` do not
    match. `token` is a pattern for the end of a name, and `short_token` for a whole name."""
    names = f"{_BEFORE}({_PARTS}|{token}|signature|authorization)|{_WORDS}|{short_token}"
    return f"([?&;]|%3b)({names})(=|%3d)"


OF_PATHS = (
    "(?i)^(s3[an]?|gc?s|az|https?)://[^/]*@|^[a-z0-9+.-]+://[^/@]*:[^/]*@|^https?://.*[?&;]"
    "([^=&?;]*(secret|token|passw|pwd|credential|signature|key|%[4-7])[^=&?;]*|code|auth|sas|sig)="
)
"""Matches credentials in an address of files. It has fewer names than other patterns, because the
API server limits the length of a pattern for a list. `CONTAINER@ACCOUNT` has no password."""
_ANY_TOKEN = f"([^-_=]|{_other_ends(_SPECIAL_TOKENS)}[-_])token"
OF_SERVERS = f"(?i)^https?://[^/?#]*@|{_query(_ANY_TOKEN, '[a-z]{0,2}[-_]?token')}"
"""Matches credentials in the address of an HTTP API."""
OF_DATABASES = f"(?i)://[^/@]*:[^@]*@|{_query('token', 'token')}"
"""Matches a password, even one with a slash as in SQLAlchemy, in the address of a database."""
OF_PROPERTIES = "(?i)secret|token|passw|pwd|credential|authorization|access-key|account-key|sas"
"""Matches the name of a property of an Iceberg catalog that has a secret value."""


def rule(expression: str) -> Any:
    """Return the annotation of a field that the API server checks with an expression in CEL. Most
    other rules are in validators only."""
    extra: dict[str, Any] = {"x-kubernetes-validations": [{"rule": expression, "message": REFUSAL}]}
    return Field(json_schema_extra=extra)


def refuse(pattern: str, message: str) -> tuple[Any, Any]:
    """Return the annotations of an address in which a pattern of this module must not occur."""

    def check(address: str) -> str:
        if re.search(pattern, address):
            raise invalid(message, HIDDEN)
        return address

    return rule(f"!self.matches('{pattern}')"), AfterValidator(check)
