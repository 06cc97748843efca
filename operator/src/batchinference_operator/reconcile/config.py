"""The settings of the operator that reconcile needs."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.concurrency_limits import Concurrency
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.ray_job import RayJobView


@dataclass(frozen=True)
class Config:
    """The platform's defaults, policy and prices, the token keys, and the concurrency limits."""

    defaults: PlatformDefaults
    token_key: bytes
    concurrency: Concurrency = field(default_factory=Concurrency)
    previous_token_key: bytes = b""
    """The key before the last rotation, from which tokens of running jobs may be derived."""
    policy: PlatformPolicy = field(default_factory=PlatformPolicy)
    prices: Prices = field(default_factory=Prices)
    own_namespace: str = ""
    """The operator's namespace. A job there could mount the token key of all Ray clusters."""

    def token(self, job: JobView, ray_job: str) -> str:
        """Return the token of the Ray cluster of a RayJob.

        The token is derived from the operator's key, because the operator has no permission to read
        Secrets. It is different for each attempt, because the name of the RayJob is.
        """
        return _token(self.token_key, *_about(job, ray_job))

    def tokens(self, job: JobView, ray_job: RayJobView) -> tuple[str, ...]:
        """Return all tokens that the Ray cluster of a RayJob may have.

        A cluster that was created before the key rotation has the token of the previous key.
        """
        about = _about(job, ray_job.name)
        keys = filter(None, (self.token_key, self.previous_token_key))
        return tuple(_token(key, *about) for key in keys)


def _about(job: JobView, ray_job: str) -> tuple[str, ...]:
    return _PURPOSE, job.namespace, job.name, job.uid, ray_job


def _token(key: bytes, *about: str) -> str:
    return hmac.new(key, "\n".join(about).encode(), hashlib.sha256).hexdigest()


_PURPOSE = "batchinference.dev/ray-cluster-token/v1"
"""Separates these tokens from other values derived from the key."""
