"""The field `cascade`: an expensive step skips the rows for which the score of an earlier, cheaper
step is high enough."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.expression import Condition
from batchinference.spec.quantities import Quantity


class Cascade(SpecModel):
    """Runs a step for the first rows of the input, and learns from them at which score an earlier
    result is good enough. The step skips all later rows with at least this score, like rows for
    which `when` is not true."""

    score: Condition
    """How sure the earlier step is: an expression that is a number, such as `cheap.score`. The step
    runs for all rows for which it is null or NaN."""
    agree: Condition
    """Whether both results are the same: a condition on columns of the output, such as
    `cheap.label == expensive.label`."""
    precision: Annotated[float, Field(gt=0, lt=1), *Quantity]
    """The fraction of the skipped rows for which `agree` must be true, such as 0.95."""
    rows: Annotated[int, Field(ge=50, le=10**6)] = 1000
    """The number of first rows from which the job learns."""

    def condition(self, threshold: float) -> str:
        """Return the condition on a row with which the step runs for it, with this threshold."""
        return f"({self.score}) is None or not ({self.score}) >= {threshold!r}"
