"""Checks that the code of a step returns what the step needs, by reading its source.

Only what is certain is a problem: literals, and calls of a few functions of Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CONDITIONAL = (
    *(ast.If, ast.IfExp, ast.Try, ast.While, ast.For, ast.Match, ast.BoolOp, ast.comprehension),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp),
)
"""Nodes whose parts may not run."""
_CALLS = {
    **dict.fromkeys(("len", "int", "float", "bool"), "a number"),
    **dict.fromkeys(("str", "repr"), "a text"),
}
"""What some functions of Python return."""
_KINDS: dict[type[ast.AST], str] = {
    **{ast.List: "a list", ast.ListComp: "a list", ast.Tuple: "a tuple", ast.Set: "a set"},
    **{ast.SetComp: "a set", ast.GeneratorExp: "a generator", ast.JoinedStr: "a text"},
    **{ast.Dict: "a dict", ast.DictComp: "a dict"},
}
_CONSTANTS: dict[type, str] = {
    str: "a text",
    bytes: "bytes",
    type(None): "None",
    bool: "a truth value",
}
_WANTED = {
    "mapBatches": (("a dict",), "a step returns a dict of columns. Write return {'NAME': values}"),
    "map": (("a dict",), "method map returns a row. Write return {'NAME': value}"),
    "flatMap": (
        ("a list", "a tuple", "a generator", "a set"),
        "method flatMap returns a list of rows. Write return [row]",
    ),
    "predictBatch": (("a list", "a tuple"), "predictBatch needs a list of results. Return one"),
}
"""What each method may return, and what to write."""


def kind_of(value: ast.expr | None) -> str | None:
    """Return what the value of an expression certainly is, with an article; None if unknown."""
    match value:
        case ast.Constant(value=constant):
            return _CONSTANTS.get(type(constant), "a number")
        case ast.Call(func=ast.Name(id=name)):
            return _CALLS.get(name)
    return _KINDS.get(type(value)) if value else None


def return_problem(path: str, method: str, function: Function, batch: str) -> str | None:
    """Return why the results of a function cannot be used; None if they can be, or if that is
    unknown. `method` is that of the step or `predictBatch`, and `batch` the parameter with the
    rows."""
    if isinstance(function, ast.AsyncFunctionDef):
        return f"'{path}' is async (line {function.lineno}), and nothing awaits it. Remove 'async'"
    own = list(_own_nodes(function))
    stored = [node.id for node in own if isinstance(node, ast.Name) and _is_stored(node)]
    if method != "predictBatch" and batch not in stored:
        wrong = (_wrong_attribute(node, method, batch) for node in own)
        if problem := next(filter(None, wrong), None):
            return f"'{path}' reads {problem}"
    if lines := [node.lineno for node in own if isinstance(node, ast.Yield | ast.YieldFrom)]:
        fix = "Write return, or set method: flatMap for a function that makes several rows"
        problem = f"'{path}' has 'yield' in line {lines[0]}. {fix}"
        return None if method == "flatMap" else problem
    written = f"return [{batch}]" if method == "flatMap" else f"return {batch}"
    returns = [node for node in own if isinstance(node, ast.Return)]
    if not any(each.value for each in returns):
        may_raise = isinstance(function.body[-1], ast.Raise | ast.While | ast.With | ast.Try)
        return None if may_raise else f"'{path}' returns nothing. Add {written} at its end"
    problems = (_problem(each, method, own, batch) for each in returns)
    found = next((each for each in problems if each), None)
    advice = f". Write {written}" if found and found.startswith("None") else ""
    return f"'{path}' returns {found}{advice}" if found else None


def _own_nodes(function: Function, but: tuple[type[ast.AST], ...] = ()) -> Iterator[ast.AST]:
    """Yield the nodes of the body of a function, without those in functions, and in nodes of the
    types in `but`."""
    left: list[ast.AST] = [*function.body]
    while left:
        node = left.pop(0)
        yield node
        if not isinstance(node, (*_SCOPES, *but)):
            left = [*ast.iter_child_nodes(node), *left]


def _wrong_attribute(node: ast.AST, method: str, batch: str) -> str | None:
    """Return the problem if a node reads an attribute that a batch, a row or a column lacks."""
    match node:
        case ast.Attribute(ast.Name(name), attr) if name == batch and not hasattr(dict, attr):
            what = "batch" if method == "mapBatches" else "row"
            frame = f"{batch} = pd.DataFrame({batch}) before it, or " if what == "batch" else ""
            fix = f"Write {frame}{batch}['{attr}'] for a column"
            return f"{batch}.{attr} in line {node.lineno}, and a {what} is a dict. {fix}"
        case ast.Attribute(ast.Subscript(ast.Name(name), ast.Constant(str())) as column, attr):
            if name != batch or method != "mapBatches" or hasattr(np.ndarray, attr):
                return None
            fix = f"Write {batch} = pd.DataFrame({batch}) before it"
            if hasattr(str, attr):
                fix = "Set method: map to get single rows"
            what = f"{ast.unparse(column)}.{attr} in line {node.lineno}"
            return f"{what}, and a column is an array. {fix}"
    return None


def columns_read(function: Function, batch: str) -> dict[str, int]:
    """Return the columns of a batch or row that a function reads in any case and does not set, with
    the line of each; none if it replaces the batch."""
    own = list(_own_nodes(function))
    if batch in (node.id for node in own if isinstance(node, ast.Name) and _is_stored(node)):
        return {}
    found: dict[str, int] = {}
    others: set[str] = set()
    always = {id(node) for node in _own_nodes(function, but=_CONDITIONAL)}
    for node in own:
        match node:
            case ast.Subscript(ast.Name(name), ast.Constant(str(key))) if name == batch:
                if not isinstance(node.ctx, ast.Load):
                    others.add(key)
                elif id(node) in always:
                    found.setdefault(key, node.lineno)
            case ast.Compare(ast.Constant(str(key)), [ast.In() | ast.NotIn()]):
                others.add(key)
    return {key: line for key, line in found.items() if key not in others}


def _problem(node: ast.Return, method: str, own: Sequence[ast.AST], batch: str) -> str | None:
    """Return the problem with a value that a function with these nodes returns."""
    value = node.value
    if value is None or kind_of(value) == "None":
        return f"None in line {node.lineno}"
    stored = [node.id for node in own if isinstance(node, ast.Name) and _is_stored(node)]
    name = value.id if isinstance(value, ast.Name) else ""
    if stored.count(name) == 1:
        value = next((each for found, each in _assigned(own) if found == name), value)
    kind, (wanted, fix) = kind_of(value), _WANTED[method]
    if kind is not None and kind not in wanted:
        return f"{kind} in line {value.lineno}, and {fix}"
    given = batch not in stored
    is_dict = isinstance(value, ast.Dict) or (name == batch and given)
    if method != "mapBatches" or not (is_dict or given):
        return None
    if ast.unparse(value).startswith(f"{batch}['") and isinstance(value, ast.Subscript):
        return f"one column in line {value.lineno}. Write return {{'NAME': {ast.unparse(value)}}}"
    once = {found: each for found, each in _assigned(own) if stored.count(found) == 1}
    columns = [
        (key, once.get(column.id, column) if isinstance(column, ast.Name) else column)
        for key, column in (_columns(value, name, own) if is_dict else ())
    ]
    names = [key for key, _ in columns]
    for key, column in columns:
        is_replaced = names.count(key) > 1
        if not is_replaced and kind_of(column) not in (None, "a list", "a tuple"):
            return _one_value(key, column, own, batch)
    return None


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store | ast.Del)


def _assigned(own: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in own:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _columns(value: ast.expr, name: str, own: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the columns of a dict: those of its literal, and each `name["column"] = value`."""
    if isinstance(value, ast.Dict):
        for key, column in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), column
    for node in own:
        match node:
            case ast.Assign(targets=[ast.Subscript(ast.Name(of), ast.Constant(at))], value=item):
                if of == name:
                    yield str(at), item


def _one_value(key: str, column: ast.expr, own: Sequence[ast.AST], batch: str) -> str:
    """Return the problem with a column that is one value."""
    read = (node for node in own if isinstance(getattr(node, "ctx", None), ast.Load))
    some = next(
        (ast.unparse(each) for each in read if ast.unparse(each).startswith(f"{batch}['")),
        f"next(iter({batch}.values()))",
    )
    written = ast.unparse(column)
    fix = f"[{written}] * len({some})" if len(written) < 40 else f"a list of len({some}) values"
    return (
        f"{kind_of(column)} in column '{key}' (line {column.lineno}), and a column has one value "
        f"for each row. Write {fix}"
    )
