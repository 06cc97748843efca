"""The field `gate`: a condition on the results of the first rows, before the job computes more."""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import SpecModel, accepted_by, invalid
from batchinference.spec.expression import (
    FUNCTIONS,
    columns_of,
    columns_read_by,
    parse_expression,
    syntax_tree,
)
from batchinference.spec.quantities import Quantity

AGGREGATES = ("count", "fraction", "mean", "min", "max")
_OTHERS = {
    **dict.fromkeys(("avg", "average"), "mean"),
    **dict.fromkeys(("share", "ratio", "rate", "percent"), "fraction"),
}
"""The aggregate function for each name that other tools use."""
_EXAMPLE = "such as mean(score) > 0.9 or fraction(label is None) < 0.1"


@dataclass(frozen=True)
class Measure:
    """An aggregate function of an expression over the rows, such as `mean(score)`."""

    function: str
    expression: str


@dataclass(frozen=True)
class Expectation:
    """A condition on measures. `condition` reads each measure as a column, such as
    `col('mean(score)') > 0.9`. `measures` has the measures by the names of these columns."""

    measures: dict[str, Measure]
    condition: str

    @property
    def columns(self) -> set[str]:
        """Return the columns of the output that the measures read."""
        expressions = (measure.expression for measure in self.measures.values())
        return set().union(*map(columns_read_by, expressions))


class _Measures(ast.NodeTransformer):
    """Replaces the calls of aggregate functions by columns, and collects the measures."""

    def __init__(self) -> None:
        self.measures: dict[str, Measure] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in (*AGGREGATES, *FUNCTIONS):
            fix = f"Use one of {', '.join(AGGREGATES)}, which measure all rows"
            raise ValueError(f"unknown function '{name}'. {fix}")
        if name not in AGGREGATES:
            return self.generic_visit(node)
        if len(node.args) != 1 or node.keywords:
            raise ValueError(f"{name}() takes one expression")
        inner, text = ast.unparse(node.args[0]), ast.unparse(node)
        if not columns_read_by(inner):
            raise ValueError(f"{text} reads no column")
        if name in ("count", "fraction") and isinstance(node.args[0], ast.Name):
            raise ValueError(f"{name}() takes a condition. Write {name}({inner} is not None)")
        self.measures[text] = Measure(name, inner)
        return ast.Call(ast.Name("col"), [ast.Constant(text)], [])


@lru_cache(maxsize=256)
def parse_expectation(text: str) -> Expectation:
    """Return the measures and the condition in a text. Raises ValueError if it is invalid."""
    measures = _Measures()
    try:
        tree = measures.visit(syntax_tree(text))
    except ValueError as error:
        fixed = re.sub(r"\bcount\(\s*\*?\s*\)", "count(COLUMN is not None)", text)
        fixed = re.sub(r"\b(\w+)\(", lambda match: f"{_OTHERS.get(match[1], match[1])}(", fixed)
        fixed = re.sub(r"\b(?:AND|OR|NOT)\b", lambda match: match[0].lower(), fixed)
        percent = r"(?<![\w.])(\d+(?:\.\d+)?) ?%(?! *\w)"
        fixed = re.sub(percent, lambda match: f"{float(match[1]) / 100:.12g}", fixed)
        if fixed == text:
            raise
        parse_expectation(fixed)  # raises ValueError if `fixed` has another problem
        raise ValueError(f"{str(error).partition('. ')[0]}. Write {fixed}") from None
    condition = ast.unparse(tree)
    others = columns_of(parse_expression(condition)) - measures.measures.keys()
    if others or not measures.measures:
        what = f"{min(others)} has a value for each row" if others else "it measures nothing"
        raise ValueError(f"{what}. Use one of {', '.join(AGGREGATES)}, {_EXAMPLE}")
    if isinstance(getattr(tree, "body", tree), ast.Call):
        raise ValueError(f"it is not a condition. Write {text.strip()} > NUMBER")
    return Expectation(measures.measures, condition)


class Gate(SpecModel):
    """A check of the results of the first rows. If `expect` is not true for them, the job fails
    with the cause GateFailed before it computes other rows. It keeps these results."""

    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The number of first rows of the input. Files are in the order of their names."""
    percent: Annotated[float, Field(gt=0, le=100), *Quantity] | None = None
    """The number of first rows as a percentage of the rows of the input, instead of `rows`."""
    expect: Annotated[str, Field(min_length=1, max_length=2048), accepted_by(parse_expectation)]
    """A condition on the output rows that come from these input rows, such as `mean(score) > 0.9`.
    It uses count, fraction, mean, min and max of expressions in the language of `filter`. `count`
    and `fraction` give the number or fraction of rows for which a condition is true. The other
    functions ignore nulls. If `expect` gives null, the job fails."""

    def _check(self) -> None:
        if self.rows is None and self.percent is None:
            raise invalid("a gate has 'rows' or 'percent'. Set one of them")
        if self.rows is not None and self.percent is not None:
            both = f"both 'rows' ({self.rows}) and 'percent' ({self.percent:g})"
            raise invalid(
                f"a gate has 'rows' or 'percent', and this one has {both}. Remove one of them"
            )
