"""The fields of a job's spec that may change after its start, with their current values."""

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
            retry=_part(Retry, spec.get("retry")),
            deadlines=_part(Deadlines, spec.get("deadlines")),
            ttl=_part(Ttl, spec.get("ttl")),
            limits=lower_limits(_part(Limits, (spec.get("cluster") or {}).get("limits")), platform),
        )


def _part(model: type[Model], given: Any) -> Model:
    """Return a part of the spec.

    An invalid field, which the API server should have rejected, counts as absent. It must not end
    a running job or discard the valid fields.
    """
    if not isinstance(given, dict):
        return model()
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faulty = {fault["loc"][0] for fault in error.errors()}
        return model.model_validate({k: v for k, v in given.items() if k not in faulty})
