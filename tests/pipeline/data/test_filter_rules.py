"""Random filters over random rows, compared with Python's own evaluation."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.steps.column_steps import Filter
from support.tiers import examples

Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("u", pa.uint8()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.large_string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int8())),
    ]
)
QUARTERS = st.integers(-4000, 4000).map(lambda number: number / 4)
LETTERS = st.text("aAbBéÉ .", max_size=4)


def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.fixed_dictionaries(
    {
        "i": column(st.integers(-1000, 1000)),
        "u": column(st.integers(0, 255)),
        "f": column(QUARTERS | st.just(float("nan"))),
        "s": column(LETTERS),
        "t": column(LETTERS),
        "b": column(st.booleans()),
        "l": column(st.lists(st.integers(0, 9), max_size=3)),
    }
)


def form(pattern: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return a strategy for the pattern with drawn values in its placeholders."""
    return st.tuples(*parts).map(lambda drawn: pattern.format(*drawn))


texts = st.recursive(
    st.sampled_from(["s", "t", "col('s')"]) | LETTERS.map(repr),
    lambda inner: (
        form("lower({})", inner)
        | form("upper({})", inner)
        | form("({} + {})", inner, inner)
        | form("({} if b else {})", inner, inner)
    ),
    max_leaves=3,
)
small = st.sampled_from(["i", "u", "f"]) | st.integers(-9, 9).map(str) | QUARTERS.map(str)
numbers = st.recursive(
    small | form("({} % {})", small, small) | form("len({})", texts) | st.just("len(l)"),
    lambda inner: (
        form("({} {} {})", inner, st.sampled_from("+-*/"), inner)
        | form("(-{})", inner)
        | form("abs({})", inner)
        | form("float({})", inner)
        | form("({} if b else {})", inner, inner)
    ),
    max_leaves=4,
)
comparison = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
member = st.sampled_from(["in", "not in"])
patterns = st.sampled_from(["a", "^a", "b$", "[aA]b?", r"\.", "", "É|é", "a.b"]).map(repr)
conditions = st.recursive(
    st.sampled_from(["b", "True", "False"])
    | form("{} {} {}", numbers, comparison, numbers)
    | form("{} % {} {} {}", small, small, comparison, small)
    | form("{} {} {} {} {}", numbers, comparison, numbers, comparison, numbers)
    | form("{} {} {}", texts, comparison, texts)
    | form("{} {} {}", st.sampled_from("iu"), member, st.lists(st.integers(-9, 300)).map(str))
    | form("{} {} {}", texts, member, st.lists(LETTERS, max_size=3).map(str))
    | form("{} {} {}", texts, member, st.lists(LETTERS | st.none(), min_size=1).map(str))
    | form("{} {} None", numbers | texts | st.just("l"), st.sampled_from(["is", "is not"]))
    | form("startswith({}, {})", texts, LETTERS.map(repr))
    | form("endswith({}, {})", texts, LETTERS.map(repr))
    | form("contains({}, {})", texts, LETTERS.map(repr))
    | form("matches({}, {})", texts, patterns),
    lambda inner: (
        form("({} and {})", inner, inner)
        | form("({} or {})", inner, inner)
        | form("(not {})", inner)
        | form("({}) == ({})", inner, inner)
    ),
    max_leaves=5,
)

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.Mod: operator.mod},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt},
    **{ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"len": len, "abs": abs, "lower": str.lower, "upper": str.upper, "float": float},
    **{"startswith": str.startswith, "endswith": str.endswith},
    "contains": operator.contains,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}


def python(node: ast.expr, row: Row) -> Any:
    """Evaluate an expression for a row in Python, with None as SQL null."""
    match node:
        case ast.Constant(value=value):
            return value
        case (
            ast.Name(id=name)
            | ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))])
        ):
            return row[name]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _unless_null(FUNCTIONS[name], *(python(part, row) for part in arguments))
        case ast.UnaryOp(op=op, operand=operand):
            function = operator.not_ if isinstance(op, ast.Not) else operator.neg
            return _unless_null(function, python(operand, row))
        case ast.BinOp(left=left, op=op, right=right):
            divided = isinstance(op, ast.Div | ast.Mod) and python(right, row) == 0
            values = (None,) if divided else (python(left, row), python(right, row))
            return _unless_null(OPERATORS[type(op)], *values)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return python(body if python(test, row) else orelse, row)
        case ast.BoolOp(op=op, values=parts):
            return _decide([python(part, row) for part in parts], isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            pairs = zip([left, *rights[:-1]], ops, rights, strict=True)
            return _decide([_compare(*pair, row) for pair in pairs], False)
    raise AssertionError(ast.dump(node))


def _compare(left: ast.expr, op: ast.cmpop, right: ast.expr, row: Row) -> bool | None:
    value = python(left, row)
    if isinstance(op, ast.Is | ast.IsNot):
        return (value is None) == isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        listed = ast.literal_eval(right)
        if value is None and None not in listed:
            return None
        return (value in listed) == isinstance(op, ast.In)
    return _unless_null(OPERATORS[type(op)], value, python(right, row))


def _unless_null(function: Callable[..., Any], *values: Any) -> Any:
    return None if None in values else function(*values)


def _decide(values: list[bool | None], decisive: bool) -> bool | None:
    """Return the SQL `or` (decisive True) or `and` (decisive False) of values that may be null."""
    if decisive in values:
        return decisive
    return None if None in values else not decisive


@settings(max_examples=examples(200), deadline=None)
@given(expression=conditions, rows=st.lists(ROWS, min_size=1, max_size=6))
def test_filter_agrees_with_python(expression: str, rows: list[Row]) -> None:
    tree = ast.parse(expression, mode="eval").body
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assume(names & {"col", *SCHEMA.names})
    kept = Filter("step", expression).mask(pa.Table.from_pylist(rows, SCHEMA)).to_pylist()
    assert kept == [python(tree, row) is True for row in rows]
