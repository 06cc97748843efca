"""An expression that does not suit the types of its columns is answered with one that does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from batchinference.pipeline.expression import ColumnExpression, UnsuitableTypes

LABEL = pa.struct([("label", pa.string()), ("score", pa.float32())])
COLUMNS = pa.schema(
    [
        *(("t", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("flag", pa.bool_())),
        *(
            ("day", pa.date32()),
            ("o", LABEL),
            ("top", pa.list_(LABEL)),
            ("e", pa.list_(pa.int32())),
        ),
    ]
)
FIXES = {
    "n > '3'": "n > 3",
    "t > 3": "float(t) > 3",
    "3 < t": "3 < float(t)",
    "t in [1, 2]": "float(t) in [1, 2]",
    "n in ['1', '2']": "n in [1, 2]",
    "t == 12345678901234568": "t == '12345678901234568'",
    "flag == 'Y'": "flag",
    "flag == 'off'": "not flag",
    "e.length > 1": "len(e) > 1",
    "t + n == 'x'": "t + str(n) == 'x'",
    "len(n) > 3": "len(str(n)) > 3",
    "contains(n, '1')": "contains(str(n), '1')",
    "abs(t) > 3": "abs(float(t)) > 3",
    "n and x > 1": "n != 0 and x > 1",
    "not t": "not t != ''",
    "'x' if n else 'y'": "'x' if n != 0 else 'y'",
    "flag == 'true'": "flag",
    "flag == 0": "not flag",
    "o == 'POSITIVE'": "o.label == 'POSITIVE'",
    "o > 0.5": "o.score > 0.5",
    "top == 'P'": "top[0].label == 'P'",
    "e > 1": "e[0] > 1",
    "o.score > '0.5'": "o.score > 0.5",
    "t.length > 3": "len(t) > 3",
    "n and t": "n != 0 and t != ''",
}
UNKNOWN = [
    "n == 'a'",
    *("n == '007'", "n in ['007']", "t in [12345678901234568]", "t > 12345678901234568"),
    *("flag == 'banana'", "flag == 2", "flag in ['true']"),
    *("contains(e, '1')", "e in ['a']", "o in ['P']", "lower(o) == 'p'", "not o"),
    "day == 5",
    "flag + 1 > 1",
    "t + 1 == 'x'",
    "matches(t, '[')",
    "day.year > 1",
]


def refusal_of(text: str) -> str:
    with pytest.raises(UnsuitableTypes) as caught:
        ColumnExpression("the filter", text).arrow(COLUMNS)
    return caught.value.message


@pytest.mark.parametrize(("text", "written"), FIXES.items())
def test_suitable_expression_is_advised(text: str, written: str) -> None:
    assert refusal_of(text).partition(". Write ")[2] == written
    assert ColumnExpression("the filter", written).arrow(COLUMNS) is not None


@pytest.mark.parametrize("text", UNKNOWN)
def test_no_expression_is_advised_if_none_is_known(text: str) -> None:
    assert ". Write " not in refusal_of(text)
