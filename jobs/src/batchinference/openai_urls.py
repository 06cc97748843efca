"""The URLs of requests in batch files of OpenAI and Azure."""

from __future__ import annotations

PATHS = ("/chat/completions", "/completions", "/embeddings")
"""The paths that are served, below the base of an API."""


def path_of(url: object) -> str | None:
    """Return the path of a URL below the base, which is `/v1`, or empty in files for Azure. None if
    it is not served."""
    path = url.removeprefix("/v1") if isinstance(url, str) else ""
    return path if path in PATHS else None
