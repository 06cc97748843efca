"""Learns the score threshold of a cascade from the first rows.

A step with a cascade skips a row if the earlier, cheaper result has at least this score. From this
score on, enough earlier results equal the results of the step."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.expression import UnsuitableTypes
from batchinference.pipeline.first_rows.row_values import values_of_rows
from batchinference.pipeline.output.python_rows import Row
from batchinference.plan import Plan
from batchinference.spec.steps import Cascade, Step

_MAX = sys.float_info.max
CONFIDENCE, _QUANTILE = 95, 1.645
"""The confidence of lower bounds in percent, and its quantile of the normal distribution."""


def with_thresholds(plan: Plan, thresholds: Mapping[str, float | None]) -> Plan:
    """Return the plan with conditions instead of cascades. The condition skips rows whose score is
    at least the threshold. Cascades without a threshold remain."""

    def changed(step: Step) -> Step:
        threshold = thresholds.get(step.name)
        if step.cascade is None or threshold is None:
            return step
        return step.model_copy(update={"when": step.cascade.condition(threshold), "cascade": None})

    stages = (replace(stage, steps=tuple(map(changed, stage.steps))) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def learn_threshold(step: str, cascade: Cascade, rows: Sequence[Row]) -> tuple[float | None, str]:
    """Return the score threshold of a step's cascade (None if no score is sufficient), and a text
    about it. Raises JobFailure if the expressions do not suit the rows. One half of the rows gives
    the threshold. The other half measures its precision."""
    try:
        values = values_of_rows({"score": cascade.score, "agree": cascade.agree}, rows)
        scores = values.column("score").cast(pa.float64()).to_pylist()
    except (UnsuitableTypes, pa.ArrowException) as error:
        raise JobFailure(f"step '{step}': the cascade cannot be computed: {error}") from None
    pairs = zip(scores, values.column("agree").to_pylist(), strict=True)
    scored = [(score, agree is True) for score, agree in pairs if score is not None]
    # without NaN (never > -inf) and infinity, because a condition cannot contain them
    known = sorted((min(score, _MAX), agree) for score, agree in scored if score > -math.inf)
    random.Random(0).shuffle(known)  # noqa: S311 - a fixed seed: same rows, same halves
    threshold = lowest_score(known[::2], cascade.precision)
    if threshold is None:
        text = f"no score has a precision of {cascade.precision:g}, so the step runs for all rows"
        return None, f"cascade '{step}': {text}"
    learned, measured = (
        [agree for s, agree in half if s >= threshold] for half in (known[::2], known[1::2])
    )
    held_out = f"{100 * sum(measured) / len(measured):.1f} %" if measured else "unknown"
    at_least = lower_bound(sum(learned), len(learned))
    return threshold, (
        f"cascade '{step}': {cascade.score} >= {threshold:.6g} is enough. The precision is at "
        f"least {100 * at_least:.1f} % with a confidence of {CONFIDENCE} %, and {held_out} in "
        f"{len(measured)} rows that were held out. "
        f"About {200 * len(measured) / len(rows):.0f} % of the rows are skipped"
    )


def lowest_score(known: Iterable[tuple[float, bool]], precision: float) -> float | None:
    """Return the lowest score that is precise enough; None if there is none. Of the rows with at
    least this score, enough agree: the lower bound of their fraction is at least `precision`."""
    number = agreed = 0
    lowest = None
    for score, rows in itertools.groupby(sorted(known, reverse=True), lambda pair: pair[0]):
        results = [agree for _, agree in rows]
        number, agreed = number + len(results), agreed + sum(results)
        if lower_bound(agreed, number) >= precision:
            lowest = score
    return lowest


def lower_bound(successes: int, number: int) -> float:
    """Return the lower bound of the one-sided Wilson interval of `successes / number`."""
    if not number:
        return 0.0
    share, z2 = successes / number, _QUANTILE**2 / number
    spread = _QUANTILE * math.sqrt((share * (1 - share) + z2 / 4) / number)
    return max(0.0, (share + z2 / 2 - spread) / (1 + z2))
