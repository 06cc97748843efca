"""kubectl that tolerates an API server that is away for a moment."""

from __future__ import annotations

import re
import time

from support.cluster.kubectl import Kubectl

PATIENCE = 90.0
"""Seconds for which calls are repeated."""
_AWAY = re.compile(
    r"refused|EOF|reset by peer|[Tt]imeout|timed out|TLS handshake|ServiceUnavailable|Unavailable"
    r"|Unable to connect|connection lost|broken pipe|closed network|not yet|shutting down"
    r"|error dialing|Unauthorized|Forbidden|unable to handle the request"
)
"""The errors of an API server that is away or has just started."""


class PatientKubectl(Kubectl):
    """Repeats calls while the API server is away. Only for idempotent calls."""

    def __call__(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return super().__call__(*arguments, text=text, timeout=timeout)
            except AssertionError as error:
                if not _AWAY.search(str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(1)
