"""MkDocs hook that rewrites links to files outside the site.

In the repository, these links are relative paths. The site has no files outside docs/ and none of
docs/contributing/, so links to them become links to the repository (REPOSITORY_URL), or plain text
if this variable is not set.
"""

import os
import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./|contributing/)([^)\s]+)\)")
_DIRECTORIES = {"../": "", "contributing/": "docs/contributing/"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with its links to files outside the site replaced."""
    repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")

    def replaced(match: re.Match[str]) -> str:
        text, path = match[1], _DIRECTORIES[match[2]] + match[3]
        return f"[{text}]({repository}/blob/main/{path})" if repository else text

    return _OUTSIDE.sub(replaced, markdown)
