"""Authenticates requests by API keys.

A mounted Secret is a directory with a file NAMESPACE.NAME for each key. The file contains the
SHA-256 hash of the key in hexadecimal. The keys themselves are stored nowhere."""

import hashlib
import logging
import re
from collections import Counter
from http import HTTPStatus
from pathlib import Path

from batchinference.service.api_error import ApiError

_FILE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)\.[-._A-Za-z0-9]+")
_HASH = re.compile("[0-9a-f]{64}")
_BEARER = re.compile(r"Bearer +([!-~]{1,512})", re.IGNORECASE)
_LOGGER = logging.getLogger(__name__)


class Keys:
    """The hashes of the API keys in a directory. Changes take effect without a restart."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed_at = 0
        self._namespaces: dict[str, str] = {}

    def namespace_of(self, authorization: str) -> str:
        """Return the namespace of the API key in a header `Authorization`. Raises ApiError."""
        key = _BEARER.fullmatch(authorization.strip())
        digest = hashlib.sha256(key[1].encode()).hexdigest() if key else ""
        # a plain lookup is safe: its time depends on hashes, which reveal nothing about keys
        namespace = self._current().get(digest)
        if namespace is None:
            message = "Incorrect API key provided. Send 'Authorization: Bearer KEY'"
            raise ApiError(HTTPStatus.UNAUTHORIZED, message, code="invalid_api_key")
        return namespace

    def _current(self) -> dict[str, str]:
        """Return the namespace for each hash of a key. Reads the files again if the time of the
        directory has changed. For a changed Secret, Kubernetes replaces a link in the directory."""
        changed_at = self._directory.stat().st_mtime_ns
        if changed_at != self._changed_at:
            entries = set(self._entries())
            uses = Counter(digest for digest, _ in entries)
            self._namespaces = {key: name for key, name in entries if uses[key] == 1}
            if len(self._namespaces) < len(entries):
                _LOGGER.warning("a key of several namespaces gives access to none of them")
            self._changed_at = changed_at
        return self._namespaces

    def _entries(self) -> list[tuple[str, str]]:
        """Return the hash and the namespace of each file with a valid name and hash."""
        files = ((_FILE.fullmatch(file.name), file) for file in self._directory.iterdir())
        named = ((file.read_bytes().strip(), name[1]) for name, file in files if name)
        hashes = ((content.decode(errors="replace"), namespace) for content, namespace in named)
        return [(digest, namespace) for digest, namespace in hashes if _HASH.fullmatch(digest)]
