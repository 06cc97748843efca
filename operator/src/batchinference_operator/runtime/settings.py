"""Settings of the operator, from its environment."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from batchinference.spec import SpecError, parse_cluster
from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.reconcile import Settings

MIN_KEY_BYTES = 16


class OperatorSettings(BaseSettings):
    """BATCHINFERENCE_OPERATOR_* variables; the chart sets them from its values."""

    model_config = SettingsConfigDict(env_prefix="BATCHINFERENCE_OPERATOR_")

    defaults_file: Path | None = None
    """YAML with the platform's defaults, in the form of spec.cluster."""
    token_key_file: Path
    """The key from which the tokens of Ray clusters follow."""
    namespaces: str = ""
    """Comma-separated namespaces to watch; all of them when empty."""
    workers: int = Field(default=16, ge=1, le=256)
    """Jobs that are looked at side by side."""
    health_port: int = 8080
    """Port of the health endpoint."""
    log_format: str = "json"
    """json or plain."""
    log_level: str = "INFO"
    """Level of the log."""

    @property
    def namespace_list(self) -> list[str]:
        return [name.strip() for name in self.namespaces.split(",") if name.strip()]

    def for_reconcile(self) -> Settings:
        """Raises ValueError for defaults or a key that cannot be used."""
        key = self.token_key_file.read_bytes().strip()
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"{self.token_key_file} holds fewer than {MIN_KEY_BYTES} bytes")
        return Settings(self._defaults(), key)

    def _defaults(self) -> Cluster:
        if self.defaults_file is None:
            return Cluster()
        try:
            return parse_cluster(self.defaults_file.read_text(encoding="utf-8"))
        except SpecError as error:
            raise ValueError(f"{self.defaults_file}: {error}") from None
