"""Finds code that uses a batch as something else: a table of pandas, a row, a list of rows or one
value. Only what fails in any case is found."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CONDITIONAL = (
    *(ast.If, ast.IfExp, ast.While, ast.For, ast.AsyncFor, ast.Match, ast.BoolOp),
    *(ast.comprehension, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp),
    *(ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Assert),
)
"""Nodes whose parts may not run."""
_LEAVES = (ast.Break, ast.Continue, ast.Return)
_OF_FRAMES = ("shape", "columns", "loc", "iloc", "index", "dtypes", "T", "size", "empty")
"""Attributes of a table of pandas that are no columns."""
_OF_ONE_VALUE = re.compile(
    r"int|float|ord|json\.loads|re\.(sub|match|search|fullmatch|findall|split)|"
    r"math\.(sqrt|log|log2|log10|exp|floor|ceil|trunc|isnan|isinf|fabs|sin|cos|tan)"
)
"""Functions of a single value, which fail for an array."""
_OF_TEXTS = ("upper", "lower", "strip", "title", "split", "capitalize", "isdigit", "splitlines")
"""Methods of texts, which other values do not have."""
_ROWS = ("batch", "row", "rows", "record", "item", "data", "x", "r", "b", "d")
"""Names of parameters that name no column."""
MAX_FIX = 90
"""Maximum number of characters of code in a message."""


Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def own_nodes(scope: Scope, *, certain: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of the body of a function or a module, without those in its functions and
    classes. With `certain`, without parts that may not run."""
    left: list[ast.AST] = [*reversed(scope.body)]
    while left:
        node = left.pop()
        yield node
        if certain and isinstance(node, _CONDITIONAL):
            left += reversed(_certain_parts(node))
        elif not isinstance(node, _SCOPES):
            left += reversed([*ast.iter_child_nodes(node)])


def _certain_parts(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a conditional node that run in any case."""
    match node:
        case ast.If(test) | ast.IfExp(test) | ast.While(test) | ast.Assert(test):
            return [test]
        case ast.For(_, source) | ast.Match(source):
            return [source]
        case ast.BoolOp(values=values):
            return values[:1]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return [node.generators[0].iter]
    return []


@dataclass(frozen=True)
class BatchUse:
    """How code uses a batch or a row, which is its parameter `name`. `stored` are the columns that
    it sets, and `assigned` the values of names that it sets once."""

    name: str
    method: str
    stored: Sequence[str]
    assigned: Mapping[str, ast.expr]
    some_column: str
    """A column that the code reads, as code."""

    def problem(self, node: ast.AST) -> str | None:
        """Return what is wrong with a part of the code, with the fix; None if nothing is."""
        found = self._of_dict(node)
        if found is None and self.method == "mapBatches":
            found = self._of_columns(node) or self._of_statements(node)
        return found

    def _of_dict(self, node: ast.AST) -> str | None:
        """Return the problem with what a dict does not have."""
        what = "batch" if self.method == "mapBatches" else "row"
        match node:
            case ast.Call(ast.Attribute(ast.Name(self.name), attr) as called):
                fix = self._fix_of_method(attr)
                reads = called
            case ast.Attribute(ast.Name(self.name), attr):
                fix = f"Write {self.name}['{attr}'] for a column"
                fix = self._fix_of_method(attr) if attr in _OF_FRAMES else fix
                reads = node
            case ast.Subscript(ast.Name(self.name), ast.Compare()) if what == "batch":
                return _reads(node, "a batch is a dict", "Use a filter step, or method: flatMap")
            case ast.Subscript(ast.Name(self.name), ast.Constant(int() as number), ast.Load()):
                item = f"[{number}]" if what == "batch" else ""
                fix = f"Write {self.name}['COLUMN']{item}"
                return _reads(node, f"a {what} is a dict of columns", fix)
            case _:
                return None
        return None if hasattr(dict, attr) else _reads(reads, f"a {what} is a dict", fix)

    def _fix_of_method(self, method: str) -> str:
        column = "COLUMN" if self.name in _ROWS else self.name
        value = f"{self.name}['{column}']"
        if hasattr(str, method):
            each = f"[value.{method}() for value in {value}]"
            return f"Write {each if self.method == 'mapBatches' else f'{value}.{method}()'}"
        if self.method != "mapBatches":
            return f"Write {value} for a column"
        frame = f"{self.name} = pd.DataFrame({self.name})"
        other = "or set method: map to get single rows"
        return f"Write {frame} before it, with 'import pandas as pd', {other}"

    def _of_columns(self, node: ast.AST) -> str | None:
        """Return the problem with the columns that a statement returns or sets, if their code is
        for one value, or leaves out rows."""
        match node:
            case ast.Return(ast.Dict(values=values)):
                found = (self._of_returned(each) or self._of_values(each) for each in values)
                return next(filter(None, found), None)
            case ast.Assign([ast.Subscript(ast.Name(self.name), ast.Constant(str()))], value=value):
                return self._of_values(value)
            case ast.Return(ast.DictComp(_, ast.Subscript(of, mask) as value, [loop])):
                if ast.unparse(loop).endswith(f", {ast.unparse(of)} in {self.name}.items()"):
                    return self._of_mask(value, mask)
        return None

    def _of_returned(self, column: ast.expr) -> str | None:
        """Return the problem with a column whose number of rows differs, or that has methods."""
        match column:
            case ast.Subscript(value, mask) if self.is_column(value):
                return self._of_mask(column, mask)
            case ast.BinOp(ast.List(), _, ast.Call(ast.Name("len"), [ast.Name(self.name)])):
                why = f"reads len({self.name}) in line {column.lineno}, and that is the number of"
                return f"{why} columns. Write len({self.some_column})"
            case ast.ListComp(
                ast.Attribute(ast.Name(each), attr) as part,
                [ast.comprehension(ast.Name(item), source)],
            ) if each == item and self.is_column(source) and attr in _OF_TEXTS:
                return _reads(part, "that is a method", f"Write {ast.unparse(part)}()")
        return None

    def _of_values(self, column: ast.expr) -> str | None:
        """Return the problem with code of a column that is for one value."""
        for inner in own_nodes(ast.Module([ast.Expr(column)], []), certain=True):
            if why := self._of_array(inner):
                of_series = isinstance(inner, ast.Attribute) and not hasattr(str, inner.attr)
                fix = "" if of_series else self.for_each(column)
                other = ", or set method: map to get single rows"
                return f"{why}. Write {fix}{other}" if fix else self._of_statements(inner)
        return None

    def _of_mask(self, node: ast.AST, mask: ast.expr) -> str | None:
        mask = self.assigned.get(mask.id, mask) if isinstance(mask, ast.Name) else mask
        if not isinstance(mask, ast.Compare) or not self._is_array(mask):
            return None
        fix = "Use a filter step, or method: flatMap"
        return _reads(node, "a batch keeps the number of its rows", fix)

    def _of_statements(self, node: ast.AST) -> str | None:
        if found := self._of_change(node):
            column, fix = found
            what = f"changes {column} in line {getattr(node, 'lineno', 0)}"
            return f"{what}, and a column cannot be changed in place. Write {column} = {fix}"
        match node:
            case ast.For() if any(isinstance(each, _LEAVES) for each in ast.walk(node)):
                return None
            case ast.For(ast.Name(row), ast.Name(self.name), body):
                return self._of_loop(row, body, node.lineno)
            case ast.For(_, ast.Call(ast.Name("range"), [ast.Call(_, [part])]), body) if (
                self.is_column(part) and "range(len(" in ast.unparse(node)
            ):
                return next(filter(None, map(self._of_statements, body)), None)
            case ast.ListComp(part, [ast.comprehension(ast.Name(row), ast.Name(self.name), [])]):
                return self._of_loop(row, [ast.Expr(part)], node.lineno)
        if why := self._of_array(node):
            frame = f"Write {self.name} = pd.DataFrame({self.name}) before it"
            frame += ", with 'import pandas as pd'"
            is_value = not isinstance(node, ast.Attribute) or hasattr(str, node.attr)
            return f"{why}. {'Set method: map to get single rows' if is_value else frame}"
        return None

    def _of_change(self, node: ast.AST) -> tuple[str, str] | None:
        """Return the column that a statement changes in place, and what to assign to it instead."""
        match node:
            case ast.AugAssign(ast.Subscript() as column, operator, value):
                changed = ast.unparse(ast.BinOp(column, operator, value))
                return (ast.unparse(column), changed) if self.is_column(column, stores=1) else None
            case ast.Assign([ast.Subscript(ast.Subscript() as column)]) if self.is_column(column):
                return ast.unparse(column), f"{ast.unparse(column)}.copy() before it"
        return None

    def _of_array(self, node: ast.AST) -> str | None:
        """Return why a node fails for an array; None if it does not."""
        match node:
            case ast.Attribute(value, attr) if self.is_column(value):
                return None if hasattr(np.ndarray, attr) else _array(node, node)
            case ast.Call(func, args) if _OF_ONE_VALUE.fullmatch(ast.unparse(func)):
                return _array(node, node) if any(map(self.is_column, args)) else None
            case ast.If(test) | ast.IfExp(test) | ast.While(test) if self._is_array(test):
                return _array(node, test)
            case ast.UnaryOp(ast.Not(), operand) if self._is_array(operand):
                return _array(node, operand)
            case ast.BoolOp(values=[first, *_]) if self._is_array(first):
                return _array(node, first)
        return None

    def _is_array(self, node: ast.expr) -> bool:
        match node:
            case ast.Compare(left, operators, right):
                of_objects = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
                plain = not any(isinstance(operator, of_objects) for operator in operators)
                return plain and any(map(self._is_array, [left, *right]))
            case ast.BinOp(left, operator):
                return not isinstance(operator, ast.MatMult) and self._is_array(left)
        return self.is_column(node)

    def is_column(self, node: ast.expr, stores: int = 0) -> bool:
        """Return whether a node is a column of the batch, which the code sets `stores` times."""
        match node:
            case ast.Subscript(ast.Name(self.name), ast.Constant(str(key))):
                return self.stored.count(key) == stores
        return False

    def _of_loop(self, row: str, body: list[ast.stmt], line: int) -> str | None:
        names = (node for part in body for node in ast.walk(part) if isinstance(node, ast.Name))
        if any(name.id == row and not isinstance(name.ctx, ast.Load) for name in names):
            return None
        for node in own_nodes(ast.Module(body, []), certain=True):
            match node:
                case ast.Subscript(ast.Name(of), ast.Constant(str())) if of == row:
                    return (
                        f"loops over {self.name} in line {line}, and that gives the names of "
                        "columns. Set method: map, and write code for one row"
                    )
        return None

    def for_each(self, value: ast.expr) -> str:
        """Return a list of the values of an expression for each row; empty if it reads no column,
        or is long."""
        names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
        columns: dict[str, str] = {}

        class Each(ast.NodeTransformer):
            def visit_Subscript(_, node: ast.Subscript) -> ast.AST:  # noqa: N805
                if not self.is_column(node):
                    return _.generic_visit(node)
                code = ast.unparse(node)
                key = str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
                plain = key.isidentifier() and not keyword.iskeyword(key) and key not in names
                other = f"value{len(columns) or ''}"
                return ast.Name(columns.setdefault(code, key if plain else other))

        each = ast.unparse(Each().visit(ast.parse(ast.unparse(value), mode="eval").body))
        source, item = ", ".join(columns), ", ".join(columns.values())
        source = f"zip({source})" if len(columns) > 1 else source
        written = f"[{each} for {item} in {source}]"
        return written if columns and len(written) <= MAX_FIX else ""


def _reads(node: ast.AST, why: str, fix: str) -> str:
    return f"reads {ast.unparse(node)} in line {getattr(node, 'lineno', 0)}, and {why}. {fix}"


def _array(node: ast.AST, part: ast.AST) -> str:
    return (
        f"reads {ast.unparse(part)} in line {getattr(node, 'lineno', 0)}, and a column is an array"
    )
