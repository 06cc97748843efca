"""What reconcile needs to know of the installation."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.model import JobView
from batchinference_operator.reconcile.turns import Concurrency


@dataclass(frozen=True)
class Settings:
    """The platform's defaults, the key from which tokens follow, and how many jobs may run."""

    defaults: Cluster
    token_key: bytes
    concurrency: Concurrency = field(default_factory=Concurrency)
    previous_token_key: bytes = b""
    """The key before the last rotation, while jobs run whose tokens follow from it."""
    own_namespace: str = ""
    """The operator's namespace: a job there could mount the token key of all Ray clusters."""

    def token(self, job: JobView, ray_job: str) -> str:
        """The token of the Ray cluster of a RayJob, whose name has the number of the attempt. It
        follows from the operator's key, so that it need not be read back: the operator has no right
        to read Secrets."""
        return _token(self.token_key, job, ray_job)

    def tokens(self, job: JobView, ray_job: str) -> tuple[str, ...]:
        """All tokens that the Ray cluster of a RayJob may have: one that was created before the key
        was rotated has that of the previous key."""
        keys = filter(None, (self.token_key, self.previous_token_key))
        return tuple(_token(key, job, ray_job) for key in keys)


def _token(key: bytes, job: JobView, ray_job: str) -> str:
    about = "\n".join((_PURPOSE, job.namespace, job.name, job.uid, ray_job))
    return hmac.new(key, about.encode(), hashlib.sha256).hexdigest()


_PURPOSE = "batchinference.dev/ray-cluster-token/v1"
"""Keeps these tokens apart from anything else that may be derived from the key."""
