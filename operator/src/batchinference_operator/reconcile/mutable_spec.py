"""The fields of a job's spec that may change after its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from batchinference.spec.base import SpecModel
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
from batchinference.spec.limits import Limits, lower_limits

Model = TypeVar("Model", bound=SpecModel)


@dataclass(frozen=True)
class MutableSpec:
    suspend: bool
    retry: Retry
    deadlines: Deadlines
    ttl: Ttl
    limits: Limits

    @classmethod
    def of(cls, spec: dict[str, Any], platform: Limits) -> MutableSpec:
        return cls(
            suspend=spec.get("suspend") is True,
            retry=_parse_section(Retry, spec.get("retry")),
            deadlines=_parse_section(Deadlines, spec.get("deadlines")),
            ttl=_parse_section(Ttl, spec.get("ttl")),
            limits=lower_limits(
                _parse_section(Limits, (spec.get("cluster") or {}).get("limits")), platform
            ),
        )


def _parse_section(model: type[Model], given: Any) -> Model:
    """Return a section of the spec without its invalid fields.

    The API server should have rejected an invalid field. It must not end a running job.
    """
    if not isinstance(given, dict):
        return model()
    try:
        return model.model_validate(given)
    except ValidationError as error:
        invalid = {problem["loc"][0] for problem in error.errors()}
        return model.model_validate({k: v for k, v in given.items() if k not in invalid})
