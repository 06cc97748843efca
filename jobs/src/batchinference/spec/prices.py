"""The prices of the pods of an attempt, which the operator passes to the driver for its report."""

from __future__ import annotations

from collections.abc import Mapping

from batchinference.spec.base import SpecModel

PRICES_VARIABLE = "BATCHINFERENCE_JOB_PRICES"
"""Environment variable of the head with the prices as JSON. Jobs cannot set it, because its prefix
is reserved."""


class PodPrices(SpecModel):
    """The prices of the pods of an attempt."""

    currency: str
    """The currency of the prices, such as EUR."""
    per_hour: dict[str, float]
    """The price of one pod per hour, by its group. The head is the group `head`."""
    before: float = 0.0
    """The cost of the earlier attempts of the job."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> PodPrices | None:
        """Return the prices in the environment variables of a driver; None if there are none."""
        text = environment.get(PRICES_VARIABLE)
        return cls.model_validate_json(text, extra="ignore") if text else None
