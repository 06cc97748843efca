"""The fields of the spec whose changes take effect after the start of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from batchinference.spec.base import SpecModel
from batchinference.spec.cluster import Limits, lower_limits
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
from batchinference.spec.platform_defaults import Lifecycle, PlatformDefaults

Model = TypeVar("Model", bound=SpecModel)


@dataclass(frozen=True)
class MutableSpec:
    """Fields of the spec whose changes also take effect after the start. The defaults and limits of
    the platform are applied."""

    suspend: bool
    retry: Retry
    deadlines: Deadlines
    ttl: Ttl
    limits: Limits

    @classmethod
    def of(cls, spec: dict[str, Any], platform: PlatformDefaults) -> MutableSpec:
        """Return these fields of a spec. An invalid or missing field has the platform's value."""
        own = Lifecycle(
            _parse_section(Retry, spec.get("retry")),
            _parse_section(Deadlines, spec.get("deadlines")),
            _parse_section(Ttl, spec.get("ttl")),
        )
        limits = _parse_section(Limits, (spec.get("cluster") or {}).get("limits"))
        return cls(
            spec.get("suspend") is True,
            *platform.complete(own),
            lower_limits(limits, platform.limits),
        )


def _parse_section(model: type[Model], given: Any) -> Model:
    """Return a section of the spec without its invalid fields. The API server should have rejected
    invalid fields. An invalid field must not end a running job."""
    if not isinstance(given, dict):
        return model()
    try:
        return model.model_validate(given)
    except ValidationError as error:
        invalid = {problem["loc"][0] for problem in error.errors()}
        return model.model_validate({k: v for k, v in given.items() if k not in invalid})
