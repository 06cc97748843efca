"""The settings of the operator that reconcile needs, and the tokens of Ray clusters."""

import hashlib
import hmac
from dataclasses import dataclass, field

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.status.ray_job_view import RayJobView


@dataclass(frozen=True)
class Config:
    """The settings of the operator that reconcile needs."""

    defaults: PlatformDefaults
    token_key: bytes
    concurrency: Concurrency = field(default_factory=Concurrency)
    previous_token_key: bytes = b""
    """The key before the last rotation, with which the tokens of running jobs may be derived."""
    policy: PlatformPolicy = field(default_factory=PlatformPolicy)
    prices: Prices = field(default_factory=Prices)
    own_namespace: str = ""
    """The operator's namespace. Jobs in this namespace fail, because they could mount the Secret
    with the token key of all Ray clusters."""

    def token(self, job: JobView, ray_job: str) -> str:
        """Return the token of the Ray cluster of a RayJob. It is derived from the current key, so
        that the operator needs no permission to read the Secret."""
        return _token(self.token_key, job, ray_job)

    def tokens(self, job: JobView, ray_job: RayJobView) -> tuple[str, ...]:
        """Return the tokens that the Ray cluster of a RayJob may have, derived from the current key
        and, if there is one, from the previous key. The cluster may be older than the rotation."""
        keys = filter(None, (self.token_key, self.previous_token_key))
        return tuple(_token(key, job, ray_job.name) for key in keys)


def _token(key: bytes, job: JobView, ray_job: str) -> str:
    about = (_PURPOSE, job.namespace, job.name, job.uid, ray_job)
    return hmac.new(key, "\n".join(about).encode(), hashlib.sha256).hexdigest()


_PURPOSE = "batchinference.dev/ray-cluster-token/v1"
"""Makes these tokens different from other values that may be derived from the key."""
