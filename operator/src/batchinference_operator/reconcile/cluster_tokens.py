"""Derives the tokens with which the operator reaches the Ray clusters of jobs."""

import hashlib
import hmac

from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.job_view import JobView

_PURPOSE = "batchinference.dev/ray-cluster-token/v1"
"""Makes these tokens different from other values that may be derived from the key."""


def cluster_tokens(config: Config, job: JobView, ray_job: str) -> tuple[str, ...]:
    """Return the tokens that the Ray cluster of a RayJob may have. The first is derived from the
    current key, the second from the previous key. The cluster may be older than the last rotation.
    Derived tokens need no permission to read Secrets."""
    about = "\n".join((_PURPOSE, job.namespace, job.name, job.uid, ray_job)).encode()
    keys = filter(None, (config.token_key, config.previous_token_key))
    return tuple(hmac.new(key, about, hashlib.sha256).hexdigest() for key in keys)
