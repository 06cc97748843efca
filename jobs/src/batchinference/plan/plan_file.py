"""Reads and writes the plan file of an attempt. The operator writes it, and the driver reads it."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from batchinference.plan.plan import Plan
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.resources import OF_PODS

_RESOURCES = {"stages": {"__all__": {"steps": {"__all__": {"resources": OF_PODS}}}}}
_OWN = ("task_retries", "actor_restarts", "measured_seconds")
_NOT_READ: dict[str, Any] = {**dict.fromkeys(_OWN, True), **_RESOURCES}
_PLAN = TypeAdapter(Plan)  # built once, because this takes longer than rendering a job


def serialize_plan(plan: Plan) -> str:
    """Return the plan as JSON, without the fields that the driver does not read from it."""
    return _PLAN.dump_json(plan, by_alias=True, exclude_none=True, exclude=_NOT_READ).decode()


def parse_plan(text: str) -> Plan:
    """Return the plan in the text of a plan file. Raises SpecError if it is invalid, or if another
    version has written it and this program cannot read it."""
    try:
        return _PLAN.validate_json(text)
    except ValidationError as error:
        why = f"the plan of the operator is not valid for this image ({error.errors()[0]['msg']})"
        fix = "Use an image of the operator's version"
        raise SpecError([Problem("", f"{why}. {fix}")]) from None
