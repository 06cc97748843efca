"""The settings of the operator that reconcile needs, and the tokens of Ray clusters."""

import hashlib
import hmac
from dataclasses import dataclass, field

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.cost import Prices
from batchinference_operator.reconcile.job_view import JobView

_PURPOSE = "batchinference.dev/ray-cluster-token/v1"
"""Makes these tokens different from other values that may be derived from the key."""


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

    def tokens(self, job: JobView, ray_job: str) -> tuple[str, ...]:
        """Return the tokens that the Ray cluster of a RayJob may have. The first is derived from
        the current key, the second from the previous key. The cluster may be older than the last
        rotation. Derived tokens need no permission to read Secrets."""
        about = "\n".join((_PURPOSE, job.namespace, job.name, job.uid, ray_job)).encode()
        keys = filter(None, (self.token_key, self.previous_token_key))
        return tuple(hmac.new(key, about, hashlib.sha256).hexdigest() for key in keys)
