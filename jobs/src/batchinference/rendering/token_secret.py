"""Renders the Secret with the token of an attempt's Ray cluster."""

from __future__ import annotations

from typing import Any

from batchinference.rendering.names import Names
from batchinference.rendering.objects import Owner, metadata

TOKEN_KEY = "auth_token"  # noqa: S105
"""The key of the token in the Secret, as KubeRay expects it."""


def token_secret(
    namespace: str | None, names: Names, token: str, owner: Owner | None
) -> dict[str, Any]:
    """Return the Secret with the token that KubeRay, the operator and Ray use in the cluster.

    Its owner must be the RayJob, not the BatchInference. KubeRay needs the token
    to stop the job of a RayJob that is being deleted. If the Secret were deleted first, KubeRay
    would wait forever.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(names.secret, namespace, names.labels, owner),
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }
