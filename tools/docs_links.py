"""MkDocs hook that rewrites links to files outside docs/.

In the repository, these links are relative paths. The site does not contain the files, so the links
become links to the repository (REPOSITORY_URL), or plain text if its URL is not set.
"""

from __future__ import annotations

import os
import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with its links to files outside docs/ replaced."""
    repository = os.environ.get("REPOSITORY_URL", "").rstrip("/")

    def replaced(match: re.Match[str]) -> str:
        text, path = match[1], match[2].removeprefix("../")
        return f"[{text}]({repository}/blob/main/{path})" if repository else text

    return _OUTSIDE.sub(replaced, markdown)
