"""Filters over dates and times, decimals, numbers without a sign, maps and dictionaries."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from batchinference.pipeline.failures import BadInput, JobFailure
from batchinference.pipeline.steps.filter import Filter

T, F = True, False
DAY = dt.datetime.fromisoformat("2024-01-01T12:00")
LARGEST = 2**64 - 1


def mask(expression: str, column: pa.Array) -> list[bool]:
    table = pa.table({"a": column, "one": pa.array([1] * len(column))})
    return list(Filter("step", expression).mask(table).to_pylist())


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32(), pa.date64()],
    ids=str,
)
def test_dates_are_compared_with_their_text(kind: pa.DataType) -> None:
    column = pa.array([dt.date(2024, 1, 1), dt.date(2024, 3, 1), None]).cast(pa.timestamp("us"))
    column = (pa.compute.assume_timezone(column, "UTC") if "UTC" in str(kind) else column).cast(
        kind
    )
    assert mask("a > '2024-01-01'", column) == [F, T, F]
    assert mask("'2024-01-01' == a", column) == [T, F, F]
    assert mask("'2023-12-31' < a < '2024-02-01'", column) == [T, F, F]
    assert mask("a in ['2024-03-01', '2025-01-01']", column) == [F, T, F]
    assert mask("a not in ['2024-03-01']", column) == [T, F, F]


@pytest.mark.parametrize(
    ("kind", "expression", "expected"),
    [
        (pa.timestamp("us"), "a == '2024-01-01T12:00'", T),
        (pa.timestamp("us", "UTC"), "a == '2024-01-01 12:00:00'", T),
        (pa.timestamp("us", "UTC"), "a == '2024-01-01T13:00:00+01:00'", T),
        (pa.timestamp("ms", "Europe/Berlin"), "a == '2024-01-01T12:00:00Z'", T),
        (pa.timestamp("ms", "Europe/Berlin"), "a == '2024-01-01T13:00:00'", T),
        (pa.timestamp("ms", "Europe/Berlin"), "a == '2024-01-01T12:00:00'", F),
    ],
    ids=str,
)
def test_times_have_the_zone_of_the_text_or_else_of_the_column(
    kind: pa.DataType, expression: str, expected: bool
) -> None:
    moment = DAY.replace(tzinfo=dt.UTC) if kind.tz else DAY
    assert mask(expression, pa.array([moment], kind)) == [expected]


def test_the_time_of_a_day() -> None:
    assert mask("a > '08:30:00'", pa.array([dt.time(9), dt.time(8)])) == [T, F]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([DAY]), "soon"),
        (pa.array([DAY]), "2024-13-01"),
        (pa.array([DAY]), "2024-01-01T00:00:00Z"),
        (pa.array([DAY], pa.timestamp("us", "UTC")), "01.02.2024"),
        (pa.array([DAY.date()]), "2024-01-01T12:00"),
        (pa.array([DAY.time()]), "noon"),
    ],
    ids=["word", "month", "zone", "order", "time of a date", "time"],
)
@pytest.mark.parametrize("expression", ["a > {}", "a in [{}]"], ids=["than", "in"])
def test_a_text_that_is_no_such_date_is_refused_with_the_type(
    column: pa.Array, text: str, expression: str
) -> None:
    with pytest.raises(BadInput) as failure:
        mask(expression.format(repr(text)), column)
    assert f"step 'step': '{text}' is no {column.type}: " in failure.value.message


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(50, 2)], ids=str
)
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        *(("a > 1", [T, F, F]), ("a == 1.5", [T, F, F]), ("a > 0.001", [T, T, F])),
        *(("a < 9223372036854775807", [T, T, F]), ("a < 1e300", [T, T, F])),
        *(("a > one", [T, F, F]), ("a in [1, 1.5]", [T, F, F]), ("a in [0.1, 0.001]", [F, T, F])),
        *(("a not in [0.10]", [T, F, F]), ("a + 1 == 2.5", [T, F, F]), ("a * 3 == 0.3", [F, T, F])),
        *(("a - 2 < -1", [F, T, F]), ("-a == -1.5", [T, F, F]), ("abs(a - 1) == 0.9", [F, T, F])),
        *(("a + one == 1.1", [F, T, F]), ("a / 2 == 0.75", [T, F, F]), ("a % 1 == 0.5", [T, F, F])),
        ("a * 0.5 == 0.05", [F, T, F]),
    ],
    ids=str,
)
def test_decimals_are_computed_as_they_are_written(
    kind: pa.DataType, expression: str, expected: list[bool]
) -> None:
    assert mask(expression, pa.array([Decimal("1.50"), Decimal("0.10"), None], kind)) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        *(
            ("a > 1", [T, T, F]),
            ("a > -1", [T, T, F]),
            ("a == -1", [F, F, F]),
            ("5 < a", [T, F, F]),
        ),
        *(("a > 1.5", [T, T, F]), ("a > one", [T, T, F]), ("a == a", [T, T, F])),
        *(("a in [5, -1]", [F, T, F]), ("a in [5.0, 5.5]", [F, T, F]), ("a not in [5]", [T, F, F])),
        *(("a + 1 > 6", [T, F, F]), ("a - 6 < 0", [F, T, F]), ("a * 2 > 10", [T, F, F])),
        *(("-a < 0", [T, T, F]), ("a - one == 4", [F, T, F]), ("a + a > a", [T, T, F])),
        *(("a % 10 == 5", [T, T, F]), ("a / 2 > 3", [T, F, F]), ("abs(a) > 5", [T, F, F])),
    ],
    ids=str,
)
def test_the_largest_number_without_a_sign(expression: str, expected: list[bool]) -> None:
    assert mask(expression, pa.array([LARGEST, 5, None], pa.uint64())) == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=str)
def test_large_whole_numbers_beside_fractions(kind: pa.DataType) -> None:
    column = pa.array([2**62 + 1, 3], kind)
    assert mask("a > 3.5", column) == [T, F]
    assert mask("a * 1.5 > 5", column) == [T, F]


def test_the_length_of_a_map() -> None:
    column = pa.array([[("k", 1), ("m", 2)], [], None], pa.map_(pa.string(), pa.int64()))
    assert mask("len(a) > 1", column) == [T, F, F]
    assert mask("len(a) == 0", column) == [F, T, F]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["Ox", "y", None]).dictionary_encode(),
        pa.array(["Ox", "y", None], pa.string_view()),
    ],
    ids=["dictionary", "view"],
)
@pytest.mark.parametrize(
    "expression", ["lower(a) == 'ox'", "len(a) == 2", "a in ['Ox']", "a == 'Ox'", "matches(a, 'x')"]
)
def test_texts_that_are_stored_otherwise(column: pa.Array, expression: str) -> None:
    assert mask(expression, column) == [T, F, F]


def test_the_length_of_binaries_of_one_length() -> None:
    assert mask("len(a) == 2", pa.array([b"ab", None], pa.binary(2))) == [T, F]


@pytest.mark.parametrize("expression", ["a > 1", "a == '1 day'"])
def test_what_cannot_be_compared_fails_the_job(expression: str) -> None:
    with pytest.raises(JobFailure, match="the filter cannot be computed"):
        mask(expression, pa.array([dt.timedelta(days=1)]))
