"""Masks credentials in texts and URLs. Recognizes a credential by its value, its format, or the
name before it.

Libraries put URLs, headers and connection strings into their error messages. Masking too much is
acceptable; showing a credential is not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

MASK = "***"
_KEY_NAMES = (
    r"(?:api|access|account|auth|client|deploy|encryption|private|shared[-_]?access|signing|ssh"
    r"|subscription)[-_]?key"
)
_PASSES = r"(?:admin|database|db|redis|smtp|sql|user)[-_]?pass(?![a-z])"
_CREDENTIAL_NAMES = (
    rf"[\w-]{{0,64}}(?:password|passwd|passphrase|pwd|secret|credential|{_PASSES}|{_KEY_NAMES})[\w-]{{0,32}}"
    r"|(?:[\w-]{0,64}(?:access|auth|api|bearer|refresh|sas|security|session)[-_]?)?token"
    r"|(?-i:[A-Z0-9_]{1,64}_(?:PASS|PAT|TOKEN))|x-[\w-]{1,32}-signature|sharedaccesssignature|proxy-authorization|authorization"
)
"""Matches names of credentials anywhere in a text, but not `pad_token` or `max_tokens`."""
_QUERY_NAMES = r"key|code|sig|sas|signature|auth|pass"
"""Further names of credentials in the query of a URL. Elsewhere, they have other meanings."""
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|(?:(?:basic|bearer|token)\s+)?[^\s&;,'"]+)"""
_MAX_USER = 512
"""Maximum length of the user and of the password in a URL."""
_KEY_BEGIN, _KEY_END = r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----", r"-----END [A-Z ]{0,32}-----"
_PATTERNS = (
    re.compile(
        rf"""(?i)(?<![\w-])(?:{_CREDENTIAL_NAMES})["']?\s*[=:]\s*(?!\.\.\.}}|{{name: )({_VALUE})"""
    ),
    re.compile(rf"""(?i)[?&;](?:{_QUERY_NAMES})=([^\s&;'"]+)"""),
    re.compile(r"(?i)\bbearer\s+([\w.~+/=-]{6,})"),
    re.compile(r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|sk-(?=[\w-]*\d)[\w-]{6,})"),
    re.compile(r"(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AIza)[\w-]{16,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"),
    re.compile(r"(?<![\w-])(?:dapi|ya29\.|npm_|pypi-|nvapi-|[rs]k_(?:live|test)_)[\w-]{16,}"),
    re.compile(rf"(?i)(?<![\w-])--(?:{_CREDENTIAL_NAMES})\s+({_VALUE})"),
    re.compile(rf"{_KEY_BEGIN}[^-]*(?:{_KEY_END})?"),
    re.compile(r"(?i)\bpass(?:word|phrase) (?:for|of) [^\n:]{1,128}:\s*(\S+)"),
    re.compile(r"""(?i)(?<![\w-])(?:set-)?cookie["']?\s*[=:]\s*["']?([^"'\r\n]+)"""),
)
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]+$")
MAX_KEY_LINES = 200
"""Maximum number of lines of a private key."""
MIN_VALUE = 6
"""Minimum length of a secret value that is masked. A shorter value may be an ordinary word."""
MIN_LINE = 16
"""Minimum length of a line in a secret value that is also masked alone."""
_DIRECTORIES = ("PWD", "OLDPWD")
"""Shell variables whose names look like names of passwords. Their values are directories."""
_values: set[str] = set()
"""The values that `add_secrets` got."""
_WORD = re.compile(r"\S+")
_CONTAINERS = ("abfs://", "abfss://")
"""Schemes of URLs such as abfs://CONTAINER@ACCOUNT, in which the text before @ is no credential."""
_NOT_IN_USER = frozenset("/?#@")
"""Characters that a user name in a URL does not have."""
_NAME_PATTERN = re.compile(_CREDENTIAL_NAMES, re.IGNORECASE)


def add_secrets(values: Iterable[str]) -> None:
    """Let `without_credentials` mask these values from now on, unless they are too short."""
    _values.update(values)


@dataclass(frozen=True)
class SecretVariables:
    """The names of environment variables with secrets.

    Each process that creates or unpickles this object masks the values of these variables."""

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        add_secrets(os.environ[name] for name in self.names if name in os.environ)

    def __reduce__(self) -> tuple[type[SecretVariables], tuple[tuple[str, ...]]]:
        return SecretVariables, (self.names,)


NO_SECRETS = SecretVariables()


@lru_cache(maxsize=1)
def _secrets_of(environment: frozenset[tuple[str, str]], values: frozenset[str]) -> tuple[str, ...]:
    """Return the forms (see `_forms`) of `values` and of environment variables with the name of a
    credential, longest first. Values shorter than MIN_VALUE are left out."""
    named = {
        value for name, value in environment if is_credential(name) and name not in _DIRECTORIES
    }
    secrets = (value.strip() for value in named | values)
    forms = {form for value in secrets if len(value) >= MIN_VALUE for form in _forms(value)}
    return tuple(sorted(forms, key=len, reverse=True))


def _forms(value: str) -> set[str]:
    """Return texts as which a secret may be written in messages, logs, JSON and URLs."""
    nested = repr(f"{value}'\"").removesuffix("\\'\"'")[1:]  # as in a text with both quotes
    lines = (line.strip() for line in value.splitlines())
    return {
        *(value, repr(value)[1:-1], nested, quote(value), quote(value, safe="")),
        *(json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]),
        *(line for line in lines if len(line) >= MIN_LINE and not line.startswith("-----")),
    }


def without_credentials(text: str) -> str:
    """Return the text with *** in place of each credential."""
    for value in _secrets_of(frozenset(os.environ.items()), frozenset(_values)):
        text = text.replace(value, MASK)
    if "://" in text and "@" in text:
        text = _WORD.sub(_mask_user, text)
    for pattern in _PATTERNS:
        text = pattern.sub(_mask, text)
    return text


class LineMasker:
    """Masks the credentials in the lines of a text. Recognizes private keys of several lines."""

    def __init__(self) -> None:
        self._key_lines = 0
        """The number of following lines that may belong to a private key."""

    def __call__(self, line: str) -> str:
        if self._key_lines:
            self._key_lines = 0 if re.search(_KEY_END, line) else self._key_lines - 1
            line = _KEY_LINE.sub(MASK, line.rstrip())
        elif re.search(_KEY_BEGIN, line) and not re.search(_KEY_END, line):
            self._key_lines = MAX_KEY_LINES
        return without_credentials(line)


def _mask_user(word: re.Match[str]) -> str:
    """Return a word with user and password masked in all its URLs. A regular expression would be
    slow for a word with many `://`."""
    text, position, parts = word[0], 0, []
    while (scheme := text.find("://", position)) >= 0:
        start = scheme + len("://")
        parts.append(text[position:start])
        position = start
        if (end := _end_of_user(text, start)) > start:
            parts.append(MASK)
            position = end
    return "".join(parts) + text[position:]


def _end_of_user(text: str, start: int) -> int:
    """Return the index of the @ after `USER` or `USER:PASSWORD`; -1 if there is none. A container
    (see _CONTAINERS) is not a user. A password may contain slashes."""
    slash = text.find("/", start, start + _MAX_USER)
    end = text.rfind("@", start, slash if slash >= 0 else start + _MAX_USER + 1)
    colon = text.find(":", start, start + _MAX_USER + 1)
    if colon < 0 or not _NOT_IN_USER.isdisjoint(text[start:colon]):
        return -1 if text.endswith(_CONTAINERS, 0, start) else end
    return max(end, text.rfind("@", colon, colon + _MAX_USER + 2))


def is_credential(name: str) -> bool:
    """Return whether a column or variable with this name holds a credential."""
    return _NAME_PATTERN.fullmatch(name) is not None


def _mask(match: re.Match[str]) -> str:
    if not match.re.groups:
        return MASK
    value = match[1]
    quote = value[0] if value[0] in "\"'" else ""
    closing = quote if len(value) > 1 and value.endswith(quote) else ""
    start, text = match.start(1) - match.start(), match[0]
    return f"{text[:start]}{quote}{MASK}{closing}"
