"""The settings of the operator that reconcile needs."""

from dataclasses import dataclass, field

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.cost import Prices


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
