"""Finds code that uses a batch as a DataFrame, a row or a list of rows, or a column as one value.
Only reports code that always fails."""

import ast
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
"""Syntax nodes that may run only some of their parts."""
_LOOP_EXITS = (ast.Break, ast.Continue, ast.Return)
_FRAME_ATTRIBUTES = ("shape", "columns", "loc", "iloc", "index", "dtypes", "T", "size", "empty")
"""Attributes of a DataFrame that are not columns."""
_VALUE_FUNCTIONS = re.compile(
    r"int|float|ord|json\.loads|re\.(sub|match|search|fullmatch|findall|split)|"
    r"math\.(sqrt|log|log2|log10|exp|floor|ceil|trunc|isnan|isinf|fabs|sin|cos|tan)"
)
"""Functions that take a single value and fail for an array."""
_USUAL_NAMES = ("batch", "row", "rows", "record", "item", "data", "x", "r", "b", "d")
"""Usual names of a parameter that is a batch or a row. Other names may be names of columns."""

Scope: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def own_nodes(scope: Scope, *, certain: bool = False) -> Iterator[ast.AST]:
    """Yield the syntax nodes in the body of a function or module, except those of inner functions
    and classes. With `certain`, also leave out nodes that may not run."""
    unvisited: list[ast.AST] = [*reversed(scope.body)]
    while unvisited:
        node = unvisited.pop()
        yield node
        if certain and isinstance(node, _CONDITIONAL):
            unvisited += reversed(_certain_parts(node))
        elif not isinstance(node, _SCOPES):
            unvisited += reversed([*ast.iter_child_nodes(node)])


def _certain_parts(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a conditional node that always run."""
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
    """How a function uses its parameter `name`: a batch if `method` is mapBatches, else a row.

    Methods return a problem as the end of a sentence that begins with the name of the function."""

    name: str
    method: str
    stored: Sequence[str]
    """The columns that the function sets or deletes, once for each statement that does so."""
    assigned: Mapping[str, ast.expr]
    """The values of the variables that the function sets once."""
    some_column: str
    """The code of a column that the function reads."""

    def problem(self, node: ast.AST) -> str | None:
        """Return the problem of a node, with a fix; None if the node has no problem."""
        problem = self._dict_problem(node)
        if problem is None and self.method == "mapBatches":
            problem = self._problem_of_return(node) or self._statement_problem(node)
        return problem

    def _dict_problem(self, node: ast.AST) -> str | None:
        """Return the problem if the code uses the dict as a DataFrame, a list or an object."""
        what = "batch" if self.method == "mapBatches" else "row"
        match node:
            case ast.Call(ast.Attribute(ast.Name(self.name), attr) as called):
                fix = self._fix_of_method(attr)
                reads = called
            case ast.Attribute(ast.Name(self.name), attr):
                fix = f"Write {self.name}['{attr}'] for a column"
                fix = self._fix_of_method(attr) if attr in _FRAME_ATTRIBUTES else fix
                reads = node
            case ast.Subscript(ast.Name(self.name), ast.Compare()) if what == "batch":
                return _misread(node, "a batch is a dict", "Use a filter step, or method: flatMap")
            case ast.Subscript(
                ast.Name(self.name),
                ast.Constant(int())
                | ast.UnaryOp(operand=ast.Constant(int()))
                | ast.Slice() as part,
                ast.Load(),
            ):
                item = f"[{ast.unparse(part)}]" if what == "batch" else ""
                fix = f"Write {self.name}['COLUMN']{item}"
                return _misread(node, f"a {what} is a dict of columns", fix)
            case _:
                return None
        return None if hasattr(dict, attr) else _misread(reads, f"a {what} is a dict", fix)

    def _fix_of_method(self, method: str) -> str:
        """Return the fix for a call of a method that a dict does not have."""
        column = "COLUMN" if self.name in _USUAL_NAMES else self.name
        value = f"{self.name}['{column}']"
        if hasattr(str, method):
            each = f"[value.{method}() for value in {value}]"
            return f"Write {each if self.method == 'mapBatches' else f'{value}.{method}()'}"
        if self.method != "mapBatches":
            return f"Write {value} for a column"
        frame = f"{self.name} = pd.DataFrame({self.name})"
        other = "or set method: map to get single rows"
        return f"Write {frame} before it, with 'import pandas as pd', {other}"

    def _problem_of_return(self, node: ast.AST) -> str | None:
        """Return the problem if a statement returns a column with another number of rows."""
        match node:
            case ast.Return(ast.Dict(values=values)):
                return next(filter(None, map(self._returned_problem, values)), None)
            case ast.Return(ast.DictComp(_, ast.Subscript(of, mask) as value, [loop])):
                if ast.unparse(loop).endswith(f", {ast.unparse(of)} in {self.name}.items()"):
                    return self._mask_problem(value, mask)
        return None

    def _returned_problem(self, column: ast.expr) -> str | None:
        """Return the problem of a returned column with another number of rows than the batch."""
        match column:
            case ast.Subscript(value, mask) if self.is_column(value):
                return self._mask_problem(column, mask)
            case ast.BinOp(ast.List(), _, ast.Call(ast.Name("len"), [ast.Name(self.name)])):
                why = f"reads len({self.name}) in line {column.lineno}, and that is the number of"
                return f"{why} columns. Write len({self.some_column})"
        return None

    def _mask_problem(self, node: ast.AST, mask: ast.expr) -> str | None:
        """Return the problem if the index of a column is a mask, which selects some rows."""
        mask = self.assigned.get(mask.id, mask) if isinstance(mask, ast.Name) else mask
        if not isinstance(mask, ast.Compare) or not self._is_array(mask):
            return None
        fix = "Use a filter step, or method: flatMap"
        return _misread(node, "a batch keeps the number of its rows", fix)

    def _statement_problem(self, node: ast.AST) -> str | None:
        """Return the problem if a node changes a column, uses it as a value, or loops over rows."""
        if change := self._change_in_place(node):
            column, fix = change
            what = f"changes {column} in line {getattr(node, 'lineno', 0)}"
            return f"{what}, and a column cannot be changed in place. Write {column} = {fix}"
        match node:
            case ast.For() if any(isinstance(each, _LOOP_EXITS) for each in ast.walk(node)):
                return None
            case ast.For(ast.Name(row), ast.Name(self.name), body):
                return self._loop_problem(row, body, node.lineno)
            case ast.For(
                _, ast.Call(ast.Name("range"), [ast.Call(ast.Name("len"), [part])]), body
            ) | ast.For(_, ast.Call(ast.Name("enumerate"), [part]), body) if self.is_column(part):
                problem = next(filter(None, map(self._statement_problem, body)), None)
                before = f" before the loop in line {node.lineno}"
                return problem.replace(" before it", before) if problem else None
            case ast.For(
                ast.Name(row), ast.Call(_, [ast.Call(ast.Name("len"), [ast.Name(self.name)])]), body
            ) if f"{self.name}[{row}]" in ast.unparse(node):
                return self._loop_problem(f"{self.name}[{row}]", body, node.lineno)
            case ast.ListComp(part, [ast.comprehension(ast.Name(row), ast.Name(self.name), [])]):
                return self._loop_problem(row, [ast.Expr(part)], node.lineno)
        if why := self._array_problem(node):
            frame = f"Write {self.name} = pd.DataFrame({self.name}) before it"
            frame += ", with 'import pandas as pd'"
            is_value = not isinstance(node, ast.Attribute) or hasattr(str, node.attr)
            return f"{why}. {'Set method: map to get single rows' if is_value else frame}"
        return None

    def _change_in_place(self, node: ast.AST) -> tuple[str, str] | None:
        """Return the column that a statement changes in place, and what to assign to it instead."""
        match node:
            case ast.Assign([ast.Subscript(ast.Subscript() as column)]) | ast.AugAssign(
                ast.Subscript(ast.Subscript() as column)
            ) if self.is_column(column):
                return ast.unparse(column), f"{ast.unparse(column)}.copy() before it"
            case ast.AugAssign(ast.Subscript() as column, operator, value):
                changed = ast.unparse(ast.BinOp(column, operator, value))
                return (ast.unparse(column), changed) if self.is_column(column, stores=1) else None
        return None

    def _array_problem(self, node: ast.AST) -> str | None:
        """Return why a node fails because a column is an array; None if the node does not fail."""
        match node:
            case ast.Attribute(value, attr) if self.is_column(value):
                return None if hasattr(np.ndarray, attr) else _array_read(node, node)
            case ast.Call(func, args) if _VALUE_FUNCTIONS.fullmatch(ast.unparse(func)):
                return _array_read(node, node) if any(map(self.is_column, args)) else None
            case ast.If(test) | ast.IfExp(test) | ast.While(test) if self._is_array(test):
                return _array_read(node, test)
            case ast.UnaryOp(ast.Not(), operand) if self._is_array(operand):
                return _array_read(node, operand)
            case ast.BoolOp(values=[first, *_]) if self._is_array(first):
                return _array_read(node, first)
        return None

    def _is_array(self, node: ast.expr) -> bool:
        """Return whether an expression is a column, or computed from a column row by row."""
        match node:
            case ast.Compare(left, operators, right):
                gives_bool = (ast.In, ast.NotIn, ast.Is, ast.IsNot)
                by_value = not any(isinstance(operator, gives_bool) for operator in operators)
                return by_value and any(map(self._is_array, [left, *right]))
            case ast.BinOp(left, operator):
                return not isinstance(operator, ast.MatMult) and self._is_array(left)
        return self.is_column(node)

    def is_column(self, node: ast.AST, stores: int = 0) -> bool:
        """Return whether a node is a batch column that the function sets `stores` times."""
        match node:
            case ast.Subscript(ast.Name(self.name), ast.Constant(str(key))):
                return self.stored.count(key) == stores
        return False

    def _loop_problem(self, row: str, body: list[ast.stmt], line: int) -> str | None:
        """Return the problem if a loop over the batch uses its variable as a row."""
        names = (node for part in body for node in ast.walk(part) if isinstance(node, ast.Name))
        if any(name.id == row and not isinstance(name.ctx, ast.Load) for name in names):
            return None
        for node in own_nodes(ast.Module(body, []), certain=True):
            match node:
                case ast.Subscript(of, ast.Constant(str())) if ast.unparse(of) == row:
                    return (
                        f"loops over {self.name} in line {line}, and that gives the names of "
                        "columns. Set method: map, and write code for one row"
                    )
        return None


def _misread(node: ast.AST, why: str, fix: str) -> str:
    """Return the problem of code that reads something that a batch or row does not have."""
    return f"reads {ast.unparse(node)} in line {getattr(node, 'lineno', 0)}, and {why}. {fix}"


def _array_read(node: ast.AST, part: ast.AST) -> str:
    return (
        f"reads {ast.unparse(part)} in line {getattr(node, 'lineno', 0)}, and a column is an array"
    )
