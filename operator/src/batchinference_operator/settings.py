"""Settings of the operator, read from environment variables."""

import socket
import zlib
from collections import Counter
from collections.abc import Callable
from math import log2
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from batchinference.rendering.policy import PlatformPolicy, parse_policy
from batchinference.spec import SpecError, parse_defaults
from batchinference_operator.controller.driver_client import CLUSTER_DOMAIN
from batchinference_operator.kube.rate_limiter import BURST, QPS
from batchinference_operator.observability.job_metrics import MAX_NAMESPACES
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.config import Config
from batchinference_operator.reconcile.cost import Prices

T = TypeVar("T")
MIN_KEY_BYTES = 32
MIN_KEY_BITS = 96.0
"""Minimum entropy of a key, estimated from the frequencies of its bytes. Users know the tokens of
their jobs, so they could find a weak key by trying keys."""
DOMAIN = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"
NAMESPACED_NAME = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"


class OperatorSettings(BaseSettings):
    """Settings from BATCHINFERENCE_OPERATOR_* variables. The chart sets them from its values."""

    model_config = SettingsConfigDict(env_prefix="BATCHINFERENCE_OPERATOR_")

    defaults_file: Path | None = None
    """YAML file with the platform's defaults: the chart value `defaults`."""
    policy_file: Path | None = None
    """YAML file with the platform's policy: the chart value `policy`. Changes take effect without a
    restart."""
    prices: Prices = Prices()
    """Prices per hour as JSON: the chart value `prices`."""
    token_key_file: Path
    """File with the key from which the tokens of Ray clusters are derived."""
    previous_token_key_file: Path | None = None
    """File with the key before the last rotation, from which the tokens of running jobs may be
    derived. The file may be absent."""
    namespaces: str = ""
    """Comma-separated namespaces to watch; all namespaces if empty."""
    own_namespace: str = ""
    """The operator's namespace, in which no jobs run. If empty, no namespace is excluded."""
    release: str = "batch-inference-operator"
    """The name of the release, unique in the operator's namespace."""
    lease: str = Field(
        default="batchinference-system/batch-inference-operator", pattern=NAMESPACED_NAME
    )
    """NAMESPACE/NAME of the Lease for which the replicas compete."""
    pod_name: str = Field(default_factory=socket.gethostname)
    """The name of this replica."""
    cluster_domain: str = Field(default=CLUSTER_DOMAIN, pattern=DOMAIN)
    """The DNS domain of the cluster."""
    workers: int = Field(default=16, ge=1, le=256)
    """Number of jobs that are reconciled concurrently."""
    max_running: int | None = Field(default=None, ge=1)
    """Maximum number of jobs that run at the same time; unlimited if absent."""
    max_running_per_namespace: int | None = Field(default=None, ge=1)
    """Maximum number of jobs that run at the same time in one namespace; unlimited if absent."""
    qps: float = Field(default=QPS, gt=0, allow_inf_nan=False)
    """Maximum average number of requests per second to the API server."""
    burst: int = Field(default=BURST, ge=1)
    """Number of requests that may be sent at once after an idle period."""
    health_port: int = 8080
    """Port of the health endpoints and the metrics."""
    metrics_namespaces: int = Field(default=MAX_NAMESPACES, ge=1, le=10_000)
    """Maximum number of namespaces with their own label value in metrics. All others share one."""
    watch_seconds: int = Field(default=60, ge=1, le=600)
    """Seconds after which the API server ends a watch, which then starts over. A watch is dead
    if it has no response for three times as long."""
    log_format: Literal["json", "plain"] = "json"
    """json or plain."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Level of the log."""

    @property
    def namespace_list(self) -> list[str]:
        """The namespaces to watch; empty for all namespaces."""
        return [name.strip() for name in self.namespaces.split(",") if name.strip()]

    @property
    def identity(self) -> str:
        """The identity of this replica in the Lease: NAMESPACE/RELEASE/POD."""
        return f"{self.own_namespace}/{self.release}/{self.pod_name}"

    def for_reconcile(self) -> Config:
        """Return the settings for reconcile. Raises OSError, or ValueError if a file is invalid."""
        previous_file, previous_key = self.previous_token_key_file, b""
        if previous_file is not None and previous_file.exists():
            previous_key = _read_key(previous_file)
        return Config(
            _parse_file(self.defaults_file, parse_defaults),
            _read_key(self.token_key_file),
            Concurrency(self.max_running, self.max_running_per_namespace),
            previous_token_key=previous_key,
            policy=self.policy(),
            prices=self.prices,
            own_namespace=self.own_namespace,
        )

    def policy(self) -> PlatformPolicy:
        """Read and return the policy. Raises OSError, or ValueError if it is invalid."""
        return _parse_file(self.policy_file, parse_policy)


def _parse_file(file: Path | None, parse: Callable[[str], T]) -> T:
    """Return the parsed content of a file; without a file, of an empty text."""
    try:
        return parse(file.read_text(encoding="utf-8") if file else "")
    except SpecError as error:
        raise ValueError(f"{file}: {error}") from None


def _read_key(path: Path) -> bytes:
    """Read and return a key. Raises ValueError if the key is too short or easy to guess."""
    content = path.read_bytes()
    # an editor may add white space; random bytes of the minimum length may end with it by chance
    key = content.strip() if len(content) > MIN_KEY_BYTES else content
    fix = "generate one with: openssl rand -hex 32"
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"{path} holds fewer than {MIN_KEY_BYTES} bytes; {fix}")
    frequencies = [count / len(key) for count in Counter(key).values()]
    bits = -len(key) * sum(frequency * log2(frequency) for frequency in frequencies)
    repeats = len(zlib.compress(key, 9)) < MIN_KEY_BYTES  # such as a repeated word
    if bits < MIN_KEY_BITS or repeats:
        raise ValueError(f"{path} holds a key that is easy to guess; {fix}")
    return key
