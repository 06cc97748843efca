"""The plan of an attempt as a file, which the operator writes and the driver reads."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from batchinference.plan.plan import Plan
from batchinference.spec.problems import Problem, SpecError

_PLAN = TypeAdapter(Plan)  # building it takes longer than the rest of rendering a job


def serialize_plan(plan: Plan) -> str:
    """Return the plan as JSON."""
    return _PLAN.dump_json(plan, by_alias=True, exclude_none=True).decode()


def parse_plan(text: str) -> Plan:
    """Return the plan in a file. Raises SpecError if this version does not understand it."""
    try:
        return _PLAN.validate_json(text)
    except ValidationError as error:
        message = (
            f"the plan of the operator is not valid for this image ({error.errors()[0]['msg']}). "
            "Use an image of the operator's version"
        )
        raise SpecError([Problem("", message)]) from None
