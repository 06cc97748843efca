"""Finds and masks credentials in texts and URLs, by their format or by the name before them.

Libraries put URLs, headers and connection strings into their error messages. Masking too much of a
text is acceptable. Showing a credential is not.
"""

from __future__ import annotations

import re

MASK = "***"
_KEY = (
    r"(?:api|access|account|auth|client|encryption|private|shared[-_]?access|subscription)[-_]?key"
)
_NAMED = (
    rf"[\w-]{{0,64}}(?:password|passwd|passphrase|pwd|secret|credential|{_KEY})[\w-]{{0,32}}"
    r"|(?:[\w-]{0,64}(?:access|auth|api|bearer|refresh|sas|security|session)[-_]?)?token"
    r"|(?-i:[A-Z0-9_]{1,64}_TOKEN)|x-[\w-]{1,32}-signature|sharedaccesssignature|proxy-authorization|authorization"
)
"""Names of credentials anywhere in a text. `pad_token` and `max_tokens` do not match."""
_OF_QUERY = r"key|code|sig|sas|signature|auth|pass"
"""Names of credentials in the query of a URL. Elsewhere these words have other meanings."""
_VALUE = r"""(?:"[^"]*"?|'[^']*'?|(?:(?:basic|bearer|token)\s+)?[^\s&;,'"]+)"""
_MAX_USER = 512
"""Maximum characters of the user and of the password in a URL."""
_FORMS = (
    re.compile(rf"""(?i)(?<![\w-])(?:{_NAMED})["']?\s*[=:]\s*({_VALUE})"""),
    re.compile(rf"""(?i)[?&;](?:{_OF_QUERY})=([^\s&;'"]+)"""),
    re.compile(r"(?i)\bbearer\s+([\w.~+/=-]{6,})"),
    re.compile(r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|sk-(?=[\w-]*\d)[\w-]{6,})"),
    re.compile(r"(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AIza)[\w-]{16,}"),
    re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    re.compile(r"(?<![\w-])eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*"),
)
_WORD = re.compile(r"\S+")
_OTHER = frozenset("/?#@")
"""Characters that a user name in a URL does not have."""
_NAME = re.compile(_NAMED, re.IGNORECASE)
_QUERY_NAME = re.compile(rf"(?:{_NAMED}|{_OF_QUERY})", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return the text with each credential replaced by ***."""
    if "://" in text and "@" in text:
        text = _WORD.sub(_without_user, text)
    for form in _FORMS:
        text = form.sub(_masked, text)
    return text


def _without_user(word: re.Match[str]) -> str:
    """Return a word with user and password masked in all its URLs.

    A regular expression would need time for each `://` in proportion to the length of a
    password."""
    text, done, parts = word[0], 0, []
    while (scheme := text.find("://", done)) >= 0:
        start = scheme + len("://")
        parts.append(text[done:start])
        done = start
        if (end := _end_of_user(text, start)) > start:
            parts.append(MASK)
            done = end
    return "".join(parts) + text[done:]


def _end_of_user(text: str, start: int) -> int:
    """Return the place of the @ after user and password; -1 if there is none.

    A password may contain slashes."""
    slash = text.find("/", start, start + _MAX_USER)
    end = text.rfind("@", start, slash if slash >= 0 else start + _MAX_USER + 1)
    if end > start:
        return end
    colon = text.find(":", start, start + _MAX_USER + 1)
    if colon < 0 or not _OTHER.isdisjoint(text[start:colon]):
        return -1
    return text.rfind("@", colon, colon + _MAX_USER + 2)


def is_credential(name: str) -> bool:
    """Return whether a column or a variable of this name holds a credential."""
    return _NAME.fullmatch(name) is not None


def names_credential(name: str) -> bool:
    """Return whether a URL query parameter of this name holds a credential."""
    return _QUERY_NAME.fullmatch(name) is not None


def _masked(match: re.Match[str]) -> str:
    if not match.re.groups:
        return MASK
    value = match[1]
    quote = value[0] if value[0] in "\"'" else ""
    closing = quote if len(value) > 1 and value.endswith(quote) else ""
    start, whole = match.start(1) - match.start(), match[0]
    return f"{whole[:start]}{quote}{MASK}{closing}"
