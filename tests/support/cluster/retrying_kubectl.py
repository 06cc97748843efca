"""kubectl that tolerates an API server that is unavailable for a moment."""

from __future__ import annotations

import re
import time

from support.cluster.kubectl import Kubectl

RETRY_SECONDS = 90.0
"""Seconds for which calls are repeated."""
_TRANSIENT = re.compile(
    r"refused|EOF|reset by peer|[Tt]imeout|timed out|TLS handshake|ServiceUnavailable|Unavailable"
    r"|Unable to connect|connection lost|broken pipe|closed network|not yet|shutting down"
    r"|error dialing|Unauthorized|Forbidden|unable to handle the request"
)
"""The errors of an API server that is unavailable or has just started."""


class RetryingKubectl(Kubectl):
    """Repeats calls while the API server is unavailable. Only for idempotent calls."""

    def __call__(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return super().__call__(*arguments, text=text, timeout=timeout)
            except AssertionError as error:
                if not _TRANSIENT.search(str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(1)
