"""The progress of a job: rows, percentage, speed and remaining time, as numbers and as text. This
module is the only source of these figures for reports, the status of a job and all commands."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel
from batchinference.spec.durations import duration_text
from batchinference.text import counted

STARTING = "starting workers and models"
"""What a run does until its first row is finished."""
MAX_ROWS = 10**15
MAX_POINTS = 60
"""Maximum number of points in RowsOverTime."""
MIN_WINDOW_SECONDS = 60.0
"""The speed is measured over at least this time, except at the start of a job."""
Rows = Annotated[int, Field(ge=0, le=MAX_ROWS, json_schema_extra={"format": "int64"})]


def average_rate(rows: int, seconds: float) -> float | None:
    """Return the rows per second of a run so far; None if no time has passed yet."""
    return max(0, rows) / seconds if seconds > 0 else None


class Progress(SpecModel):
    """The progress of the job. It decreases only with the final report of an attempt that started
    over."""

    rows: Rows
    """Finished rows: written, failed or filtered rows."""
    total: Rows | None = None
    """Rows of the input. Absent until the number is known or can be estimated."""
    estimated: bool | None = None
    """Whether `total` is an estimate."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Finished rows as a percentage of `total`, rounded down. At most 99 if this is an estimate."""
    rows_per_second: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Finished rows per second over the last minute; in a long run, over the second half of the
    time since the first finished row. After the end, over the running time."""
    eta: Annotated[str, Field(max_length=32)] | None = None
    """The remaining time at `rowsPerSecond`, such as 2m30s."""

    @classmethod
    def of(
        cls,
        rows: int,
        total: int | None = None,
        *,
        estimated: bool = False,
        rate: float | None = None,
    ) -> Progress:
        """Return the progress of a job with `rows` finished rows, at `rate` rows per second. `rows`
        and `total` may come from untrusted files and are cut to MAX_ROWS."""
        rows = min(rows, MAX_ROWS)
        total = None if total is None else min(max(total, rows), MAX_ROWS)
        known = cls(
            rows=rows,
            total=total,
            estimated=estimated or None,
            percent=_percent(rows, total, estimated=estimated),
            rowsPerSecond=float(f"{rate:.4g}") if rate else None,
        )
        seconds = known.remaining_seconds
        eta = None if seconds is None else duration_text(seconds)
        return known.model_copy(update={"eta": eta})

    @classmethod
    def sum(cls, parts: Iterable[Progress]) -> Progress:
        """Return the progress of all parts of a job together, at the speed of the last part."""
        known = list(parts)
        totals = [part.total for part in known if part.total is not None]
        return cls.of(
            sum(part.rows for part in known),
            sum(totals) if len(totals) == len(known) else None,
            estimated=any(part.estimated for part in known),
            rate=known[-1].rows_per_second,
        )

    @property
    def remaining_seconds(self) -> float | None:
        """The seconds until all rows are finished at this speed; None if they are unknown."""
        if self.total is None or (self.estimated and self.rows >= self.total):
            return None
        if self.rows >= self.total:
            return 0.0
        seconds = (self.total - self.rows) / (self.rows_per_second or math.nan)
        return seconds if math.isfinite(seconds) else None

    def at_rate(self, rate: float | None) -> Progress:
        """Return the progress with a measured speed, and the remaining time at this speed."""
        return Progress.of(self.rows, self.total, estimated=bool(self.estimated), rate=rate)

    @property
    def count(self) -> str:
        """The rows such as `30 of 260`, or `30 of ~260` if the total is an estimate."""
        about = "~" if self.estimated else ""
        return f"{self.rows:,}" + ("" if self.total is None else f" of {about}{self.total:,}")

    @property
    def rows_text(self) -> str:
        """The rows such as `30 of 260 (11 %)`, without parts that are unknown."""
        return self.count + (f" ({self.percent} %)" if self.percent is not None else "")

    @property
    def speed(self) -> str:
        """The speed such as `2.5 rows/s`; empty if it is unknown."""
        rate = self.rows_per_second
        return f"{rate:{',.1f' if rate >= 1 else '.2g'}} rows/s" if rate else ""

    @property
    def remaining(self) -> str:
        """The remaining time such as `2m30s`; empty if it is unknown, or if no rows remain."""
        return self.eta or "" if self.rows != self.total else ""

    @property
    def pace(self) -> list[str]:
        """The speed and the remaining time, if known, such as `2.5 rows/s` and `ETA 2m30s`."""
        return [text for text in (self.speed, self.remaining and f"ETA {self.remaining}") if text]

    @property
    def figures(self) -> list[str]:
        """The rows and, if known, the percentage, such as `30 rows` and `11 %`."""
        percent = [f"{self.percent} %"] if self.percent is not None else []
        return [counted(self.rows, "row"), *percent]


Tokens = Annotated[int, Field(ge=0, le=MAX_ROWS, json_schema_extra={"format": "int64"})]


class TokenKind(StrEnum):
    """A kind of tokens. Its value is the name of a field of Counts."""

    INPUT = "inputTokens"
    CACHED = "cachedTokens"
    OUTPUT = "outputTokens"


class Counts(SpecModel):
    """Rows by result, and their tokens. A step can turn an input row into several rows. The numbers
    of tokens are absent if no step of the job counts tokens."""

    read: Rows = 0
    """Rows that were read from the input."""
    written: Rows = 0
    """Rows in the output."""
    failed: Rows = 0
    """Rows that have an error record."""
    filtered: Rows = 0
    """Rows that a filter or another step removed."""
    warned: Rows = 0
    """Warnings about rows that have not failed. A row may have several."""
    input_tokens: Tokens | None = None
    """Tokens of prompts and texts that models have read for these rows."""
    cached_tokens: Tokens | None = None
    """Input tokens whose computation was reused from other rows, if models report them."""
    output_tokens: Tokens | None = None
    """Tokens that models have generated for these rows."""

    @property
    def tokens(self) -> int:
        """The input and output tokens."""
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    @property
    def tokens_text(self) -> str:
        """The tokens such as `1,200 input (200 cached) + 300 output tokens`. Kinds without tokens
        are left out; empty without input and output tokens."""
        cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
        parts = [f"{self.input_tokens:,} input{cached}"] if self.input_tokens else []
        parts += [f"{self.output_tokens:,} output"] if self.output_tokens else []
        return f"{' + '.join(parts)} tokens" if parts else ""

    @property
    def troubles(self) -> list[str]:
        """The numbers of failed rows and of warnings as texts, without zeros."""
        failed = [f"{self.failed} failed"] if self.failed else []
        return [*failed, f"{self.warned} with warnings"] if self.warned else failed

    def __add__(self, other: Counts) -> Counts:
        return Counts.sum((self, other))

    def __sub__(self, other: Counts) -> Counts:
        before = other.model_dump(by_alias=True, exclude_none=True)
        after = self.model_dump(by_alias=True, exclude_none=True)
        return Counts(**{name: max(0, n - before.get(name, 0)) for name, n in after.items()})

    @classmethod
    def sum(cls, parts: Iterable[Counts]) -> Counts:
        """Return the sum of counts, cut to MAX_ROWS. Counts in untrusted files may be higher."""
        sums = Counter[str]()
        for each in parts:
            sums.update(each.model_dump(by_alias=True, exclude_none=True))
        return cls(**{name: min(number, MAX_ROWS) for name, number in sums.items()})


class ReplacedFiles(SpecModel):
    """Input files that have changed or are gone since the output began or was last complete."""

    recomputed: Rows = 0
    """Changed files whose rows were computed again."""
    removed: Rows = 0
    """Files that are gone and whose rows were removed."""

    @classmethod
    def sum(cls, parts: Iterable[ReplacedFiles | None]) -> ReplacedFiles | None:
        """Return the sum; None if there are no parts."""
        known = [part for part in parts if part is not None]
        recomputed, removed = (sum(p.recomputed for p in known), sum(p.removed for p in known))
        return cls(recomputed=recomputed, removed=removed) if known else None

    def __str__(self) -> str:
        return f"{self.recomputed} recomputed, {self.removed} removed"


class RowsOverTime(SpecModel):
    """The number of finished rows over time. Both lists have the same length."""

    seconds: list[float]
    """Seconds since the driver started."""
    rows: list[Rows]
    """Number of finished rows at each of these times, including rows of earlier runs."""


def _percent(rows: int, total: int | None, *, estimated: bool) -> int | None:
    """Return the percentage, rounded down; None if it is unknown. With an estimated total, it is at
    most 99, because the input may have more rows."""
    if total is None or (estimated and not total):
        return None
    percent = 100 * rows // total if total else 100
    return min(percent, 99) if estimated else percent


@dataclass
class ProgressHistory:
    """Records the finished rows at up to MAX_POINTS times, and computes their speed. `start` is a
    time of a clock in seconds. Each point has the seconds since `start` and the finished rows.

    If there are too many points, every second point is dropped, and later gaps double."""

    start: float
    points: list[tuple[float, int]] = field(default_factory=list, init=False)
    _gap: float = field(default=0.0, init=False)
    _base: tuple[float, int] = field(default=(0.0, 0), init=False)
    """The last point before the first new rows: models may still load until this point."""

    def add(self, rows: int, now: float) -> None:
        """Record that `rows` rows are finished at the time `now`. If the clock goes backwards, the
        time of the last point is used."""
        last = (max(now - self.start, self.points[-1][0] if self.points else 0.0), rows)
        if len(self.points) > 1 and self.points[-1][0] - self.points[-2][0] < self._gap:
            self.points.pop()
        self.points.append(last)
        if rows == self.points[0][1]:
            self._base = last
        if len(self.points) > MAX_POINTS:
            del self.points[1:-1:2]
            self._gap = 2 * last[0] / MAX_POINTS

    @property
    def rate(self) -> float | None:
        """The rows per second over the last MIN_WINDOW_SECONDS, or over half of the time since the
        first new rows if this is longer. None if there are no new rows. The measured time begins at
        a point with fewer rows, because commits are rare."""
        if not self.points:
            return None
        end, rows = self.points[-1]
        window = max(MIN_WINDOW_SECONDS, (end - self._base[0]) / 2)
        points = [self._base, *(one for one in self.points if self._base[1] < one[1] < rows)]
        old = [point for point in points if end - point[0] >= window]
        start, before = old[-1] if old else self._base
        return (rows - before) / (end - start) if rows > before and end > start else None

    @property
    def over_time(self) -> RowsOverTime:
        """The recorded points."""
        return RowsOverTime(
            seconds=[round(seconds, 1) for seconds, _ in self.points],
            rows=[rows for _, rows in self.points],
        )
