"""The URLs of requests in batch files of OpenAI and Azure."""

from __future__ import annotations

PATHS = ("/chat/completions", "/completions", "/embeddings")
"""The supported paths, below the base of an API (`/v1`, or empty in files for Azure)."""


def path_of(url: object) -> str | None:
    """Return the path of a URL below the base of the API; None if it is not in PATHS."""
    path = url.removeprefix("/v1") if isinstance(url, str) else ""
    return path if path in PATHS else None
