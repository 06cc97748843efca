"""Checks that the code of a step returns what the step needs, by reading its source.

Only what is certain is a problem: literals, and calls of a few functions of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_OF_ONE_VALUE = ("len", "str", "int", "float", "bool", "sum", "repr")
"""Functions of Python that return one value."""
_KINDS: dict[type[ast.AST], str] = {
    **{ast.List: "a list", ast.ListComp: "a list", ast.Tuple: "a tuple", ast.Set: "a set"},
    **{ast.SetComp: "a set", ast.GeneratorExp: "a generator", ast.JoinedStr: "a text"},
    **{ast.Dict: "a dict", ast.DictComp: "a dict"},
}
_KINDS_OF_CONSTANTS = {str: "a text", bytes: "bytes", type(None): "None", bool: "a truth value"}


def return_problem(path: str, method: str, function: Function, batch: str) -> str | None:
    """Return why the results of a function cannot be used; None if they can be, or if that is
    unknown. `method` is that of the step or `predictBatch`, and `batch` the parameter with the
    rows."""
    if isinstance(function, ast.AsyncFunctionDef):
        return f"'{path}' is async (line {function.lineno}), and nothing awaits it. Remove 'async'"
    own = list(_own_nodes(function))
    yields = [node for node in own if isinstance(node, ast.Yield | ast.YieldFrom)]
    if yields:
        fix = "Write return, or set method: flatMap for a function that makes several rows"
        problem = f"'{path}' has 'yield' in line {yields[0].lineno}. {fix}"
        return None if method == "flatMap" else problem
    returns = [node for node in own if isinstance(node, ast.Return)]
    if not any(each.value for each in returns):
        may_end = isinstance(function.body[-1], ast.Raise | ast.While | ast.With | ast.Try)
        fix = f"Add return {_example(method, batch)} at its end"
        return None if may_end else f"'{path}' returns nothing. {fix}"
    check = _Returned(path, method, batch, own)
    return next(filter(None, map(check.problem, returns)), None)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of the body of a function, without those of functions in it."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop(0)
        yield node
        if not isinstance(node, _SCOPES):
            left = [*ast.iter_child_nodes(node), *left]


def _example(method: str, batch: str) -> str:
    return f"[{batch}]" if method == "flatMap" else batch


class _Returned:
    """Checks the values that a function returns. `own` are the nodes of its body."""

    def __init__(self, path: str, method: str, batch: str, own: Sequence[ast.AST]) -> None:
        self._path, self._method, self._batch = path, method, batch
        self._own = own
        stored = [node.id for node in own if isinstance(node, ast.Name) and _is_stored(node)]
        plain = [node for node in own if isinstance(node, ast.Assign) and len(node.targets) == 1]
        self._values = {
            node.targets[0].id: node.value
            for node in plain
            if isinstance(node.targets[0], ast.Name) and stored.count(node.targets[0].id) == 1
        }
        self._has_own_batch = batch not in stored

    def problem(self, node: ast.Return) -> str | None:
        """Return the problem with a return statement."""
        value = node.value
        name = value.id if isinstance(value, ast.Name) else ""
        value = self._values.get(name, value)
        problem = self._of_result(value)
        is_batch = name == self._batch and self._has_own_batch
        is_dict = is_batch or isinstance(value, ast.Dict)
        if problem is None and self._method == "mapBatches" and is_dict:
            problem = next(filter(None, map(self._of_item, self._set_items(name))), None)
        return f"'{self._path}' returns {problem}" if problem else None

    def _of_result(self, value: ast.expr | None) -> str | None:
        line, kind = getattr(value, "lineno", 0), kind_of(value)
        if self._method == "mapBatches" and isinstance(value, ast.Dict):
            pairs = zip(value.keys, value.values, strict=True)
            found = (self._of_column(_text(key), item) for key, item in pairs if key is not None)
            return next(filter(None, found), None)
        if value is None or kind == "None":
            return f"None. Write return {_example(self._method, self._batch)}"
        if self._method == "mapBatches" and self._is_column(value):
            written = ast.unparse(value)
            return f"one column in line {line}. Write return {{'NAME': {written}}}"
        wanted = _WANTED[self._method]
        if kind is None or kind in wanted[0]:
            return None
        return f"{kind} in line {line}, and {wanted[1]}"

    def _of_column(self, name: str, value: ast.expr) -> str | None:
        """Return the problem with a column that is one value."""
        kind = kind_of(value)
        if kind in (None, "a list", "a tuple"):
            return None
        rows = f"len({self._some_column()})"
        written = ast.unparse(value)
        fix = f"[{written}] * {rows}" if len(written) < 40 else f"a list of {rows} values"
        return (
            f"{kind} in column '{name}' (line {value.lineno}), and a column has one value for each "
            f"row. Write {fix}"
        )

    def _of_item(self, node: ast.Assign) -> str | None:
        target = node.targets[0]
        key = target.slice if isinstance(target, ast.Subscript) else None
        return self._of_column(_text(key), node.value)

    def _set_items(self, name: str) -> Iterator[ast.Assign]:
        """Yield each `name["column"] = value`."""
        for node in self._own:
            match node:
                case ast.Assign(
                    targets=[ast.Subscript(value=ast.Name(id=found), slice=ast.Constant())]
                ) if found == name:
                    yield node

    def _is_column(self, value: ast.expr) -> bool:
        match value:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str())):
                return name == self._batch and self._has_own_batch
        return False

    def _some_column(self) -> str:
        """Return the expression of a column that the function reads, or of the first column."""
        for node in self._own:
            match node:
                case ast.Subscript(
                    value=ast.Name(id=name), slice=ast.Constant(value=str() as key), ctx=ast.Load()
                ) if name == self._batch:
                    return f"{name}[{key!r}]"
        return f"next(iter({self._batch}.values()))"


_WANTED: dict[str, tuple[Sequence[str], str]] = {
    "mapBatches": (
        ("a dict",),
        "a step returns a dict of columns. Write return {'NAME': values}",
    ),
    "map": (("a dict",), "method map returns a row. Write return {'NAME': value}"),
    "flatMap": (
        ("a list", "a tuple", "a generator", "a set"),
        "method flatMap returns a list of rows. Write return [...]",
    ),
    "predictBatch": (
        ("a list", "a tuple"),
        "predictBatch needs a list with one result for each value",
    ),
}
"""What each method may return, and what to write."""


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)


def _text(key: ast.expr | None) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else "?"


def kind_of(value: ast.expr | None) -> str | None:
    """Return what the value of an expression certainly is, with an article; None if unknown."""
    match value:
        case ast.Constant(value=constant):
            return _KINDS_OF_CONSTANTS.get(type(constant), "a number")
        case ast.Call(func=ast.Name(id=name)) if name in _OF_ONE_VALUE:
            return "a text" if name in ("str", "repr") else "a number"
    return _KINDS.get(type(value)) if value else None
