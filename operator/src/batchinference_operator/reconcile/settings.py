"""What reconcile needs to know of the installation."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.turns import Concurrency


@dataclass(frozen=True)
class Settings:
    """The platform's defaults, the key from which tokens follow, and how many jobs may run."""

    defaults: Cluster
    token_key: bytes
    concurrency: Concurrency = field(default_factory=Concurrency)

    def token(self, uid: str) -> str:
        """The token of a job's Ray clusters. It follows from the operator's key, so that it need
        not be read back: the operator has no right to read Secrets."""
        return hmac.new(self.token_key, uid.encode(), hashlib.sha256).hexdigest()
