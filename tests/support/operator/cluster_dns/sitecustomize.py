"""Replaces the cluster's DNS for an operator outside of it.

Every service name resolves to the dashboard of the test.
"""

from __future__ import annotations

import os
import socket
from typing import Any

_lookup = socket.getaddrinfo


def _of_cluster(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
    if str(host).endswith(".svc.cluster.local."):
        host, port = os.environ["DASHBOARD_OF_TEST"].split(":")
    return _lookup(host, port, *rest, **options)


socket.getaddrinfo = _of_cluster
