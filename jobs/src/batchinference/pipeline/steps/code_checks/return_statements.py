"""Checks, from the source code, how the function of a step uses its batch or row, and what it
returns. Only simple expressions are understood, such as literals and calls of a few built-in
functions. Only code that always fails is reported."""

import ast
import sys
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from batchinference.pipeline.steps.code_checks.batch_use import BatchUse, own_nodes

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
KIND_OF_RESULT = {
    **dict.fromkeys(("len", "int", "float"), "a number"),
    **dict.fromkeys(("str", "repr"), "a text"),
    **dict.fromkeys(("list", "sorted"), "a list"),
    **{"bool": "a truth value", "tuple": "a tuple", "set": "a set"},
}
"""The kind of value that some built-in functions always return."""
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
"""For each method: the allowed kinds of value, and the end of a message about any other kind."""


def kind_of(value: ast.expr | None) -> str | None:
    """Return the kind of the value of an expression, such as `a list`; None if it is unknown."""
    match value:
        case ast.Constant(value=constant):
            return _CONSTANTS.get(type(constant), "a number")
        case ast.Call(func=ast.Name(id=name)):
            return KIND_OF_RESULT.get(name)
    return _KINDS.get(type(value)) if value else None


def return_problem(path: str, method: str, function: Function, batch: str) -> str | None:
    """Return the first problem with the use of the parameter `batch` in a function, or with what
    the function returns. Return None if no problem is known. `method` is the method of the step, or
    `predictBatch`. `batch` names a batch, a row or a list of values, depending on `method`."""
    if isinstance(function, ast.AsyncFunctionDef):
        return f"'{path}' is async (line {function.lineno}), and nothing awaits it. Remove 'async'"
    own = list(own_nodes(function))
    if method != "predictBatch" and batch not in _names_set(function) and _keeps(function, batch):
        use = _use_of(function, method, batch)
        if problem := next(filter(None, map(use.problem, _certain_nodes(function))), None):
            return f"'{path}' {problem}"
    if lines := [node.lineno for node in own if isinstance(node, ast.Yield | ast.YieldFrom)]:
        fix = "Write return, or set method: flatMap for a function that makes several rows"
        problem = f"'{path}' has 'yield' in line {lines[0]}. {fix}"
        return None if method == "flatMap" else problem
    written = f"return [{batch}]" if method == "flatMap" else f"return {batch}"
    returns = [node for node in own if isinstance(node, ast.Return)]
    if not any(each.value for each in returns):
        may_raise = isinstance(function.body[-1], ast.Raise | ast.While | ast.With | ast.Try)
        return None if may_raise else f"'{path}' returns nothing. Add {written} at its end"
    problems = [_problem_of_return(each, method, function, batch) for each in returns]
    problem = problems[0] if all(problems) else None  # the return that runs may have no problem
    fix = f". Write {written}" if problem and ". " not in problem else ""
    return f"'{path}' returns {problem}{fix}" if problem else None


def _use_of(function: Function, method: str, batch: str) -> BatchUse:
    parts = (ast.unparse(each) for each in own_nodes(function) if isinstance(each, ast.Subscript))
    columns = (each for each in parts if each.startswith(f"{batch}['") and each.endswith("']"))
    some_column = next(columns, f"next(iter({batch}.values()))")
    keys, once = _keys_set(function, batch), _set_once(function)
    return BatchUse(batch, method, keys, once, some_column)


def _certain_nodes(function: Function) -> list[ast.AST]:
    """Return the nodes of a function that always run, up to its first return statement."""
    returns = [node for node in own_nodes(function) if isinstance(node, ast.Return)]
    end = min((node.end_lineno or 0 for node in returns), default=sys.maxsize)
    nodes = own_nodes(function, certain=True)
    return [node for node in nodes if getattr(node, "lineno", 0) <= end]


def _keeps(function: Function, name: str) -> bool:
    """Return whether all uses of the dict `name` in a function are known to change no key, or only
    keys in `_keys_set`. Return False for any other use, and for `del` of a key."""
    unknown_uses = 0
    for node in ast.walk(function):
        match node:
            case ast.Name(id, ast.Load()) if id == name:
                unknown_uses += 1
            case ast.Subscript(ast.Name(id), ctx=ast.Load()) | ast.Subscript(
                ast.Name(id), ast.Constant() | ast.Compare(), ast.Store()
            ):
                unknown_uses -= id == name
            case ast.For(iter=ast.Name(id)) | ast.comprehension(iter=ast.Name(id)):
                unknown_uses -= id == name
            case ast.Call(ast.Name("len"), [ast.Name(id)]) | ast.Return(ast.Name(id)):
                unknown_uses -= id == name
            case ast.Attribute(ast.Name(id), attr):
                reads = attr in ("items", "keys", "values") or attr not in dir(dict)
                unknown_uses -= id == name and reads
            case ast.Dict(keys, values):  # {**name}
                unpacked = [v for k, v in zip(keys, values, strict=True) if k is None]
                unknown_uses -= sum(isinstance(v, ast.Name) and v.id == name for v in unpacked)
    return unknown_uses == 0


def columns_read(function: Function, batch: str) -> dict[str, int]:
    """Return the columns that a function always reads from its batch or row but does not set, and
    their lines. Return an empty dict if the function may change the batch in other ways."""
    if batch in _names_set(function) or not _keeps(function, batch):
        return {}
    lines: dict[str, int] = {}
    set_columns = _keys_set(function, batch)
    for node in _certain_nodes(function):
        match node:
            case ast.Subscript(ast.Name(name), ast.Constant(str(key))) if name == batch:
                lines.setdefault(key, node.lineno)
    return {key: line for key, line in lines.items() if key not in set_columns}


def _problem_of_return(node: ast.Return, method: str, function: Function, batch: str) -> str | None:
    """Return the problem with the value of a return statement; None if none is known."""
    value = node.value
    match value:
        case ast.Call(ast.Attribute(ast.Name(of), "update"), [ast.Dict(keys, values)]):
            merged = ast.Dict([None, *keys], [ast.Name(of), *values])
            fix = f"Write return {ast.unparse(merged)}"
            return f"None in line {node.lineno}, as update does. {fix}" if of == batch else None
    if value is None or kind_of(value) == "None":
        return f"None in line {node.lineno}"
    name = value.id if isinstance(value, ast.Name) else ""
    value = _set_once(function).get(name, value)
    kind, (wanted, fix) = kind_of(value), _WANTED[method]
    is_input = batch not in _names_set(function)
    if kind is not None and kind not in wanted:
        written = _as_dict(value, batch) if is_input and method != "flatMap" else ""
        fix = f"{fix.partition('. ')[0]}. Write return {written}" if written else fix
        return f"{kind} in line {value.lineno}, and {fix}"
    is_dict = isinstance(value, ast.Dict) or (name == batch and is_input)
    if method != "mapBatches" or not (is_dict or is_input):
        return None
    match value:
        case ast.Subscript(ast.Name(of), ast.Constant(str(key))) if of == batch:
            fix = f"Write return {{'NAME': {ast.unparse(value)}}}"
            is_column = key not in _keys_set(function, batch) and _keeps(function, batch)
            return f"one column in line {value.lineno}. {fix}" if is_column else None
    if not is_dict or (name and not _keeps(function, name)):
        return None
    return _column_problem(value, name, function, batch)


def _as_dict(value: ast.expr, batch: str) -> str:
    """Return the code of the dict that was probably meant: `{'a': x}` for `{'a', x}`; else ""."""
    match value:
        case ast.Tuple(elts) if batch in map(ast.unparse, elts):
            return batch
        case ast.Set([ast.Constant(str(name)), column]):
            return f"{{{name!r}: {ast.unparse(column)}}}"
        case ast.Tuple([ast.Subscript(ast.Name(of), ast.Constant(str())), *_] as elts):
            columns = [each for each in elts if isinstance(each, ast.Subscript)]
            if of == batch and len(columns) == len(elts):
                pairs = (f"{ast.unparse(each.slice)}: {ast.unparse(each)}" for each in columns)
                return f"{{{', '.join(pairs)}}}"
    return ""


def _column_problem(value: ast.expr, name: str, function: Function, batch: str) -> str | None:
    """Return the problem with a column that has one value instead of a value for each row. The
    function returns a dict: the literal `value`, or the variable `name` (then `value` is what the
    function assigns to it, if that is known)."""
    keys, once = _keys_set(function, name), _set_once(function)
    if isinstance(value, ast.Dict):
        keys += [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
    for key, item in _columns(value, name, _certain_nodes(function)):
        column = once.get(item.id, item) if isinstance(item, ast.Name) else item
        if keys.count(key) == 1 and kind_of(column) not in (None, "a list", "a tuple"):
            return _one_value_problem(key, column, _use_of(function, "mapBatches", batch))
    return None


def _names_set(function: Function) -> list[str]:
    """Return the names that a function and its inner functions set, once for each assignment."""
    nodes = (node for node in ast.walk(function) if node is not function)
    return [name for node in nodes for name in bound_names(node)]


def bound_names(node: ast.AST) -> list[str]:
    """Return the names that a node sets, deletes, imports or declares global or nonlocal."""
    match node:
        case ast.Name(name, ast.Store() | ast.Del()):
            return [name]
        case ast.Global(names) | ast.Nonlocal(names):
            return names
        case ast.alias(name, asname):
            return [asname or name.partition(".")[0]]
    values = (getattr(node, key, None) for key in ("name", "rest"))
    return [value for value in values if isinstance(value, str)]


def _keys_set(function: Function, name: str) -> list[str]:
    """Return the keys that a function sets or deletes in a dict, once for each statement."""
    return [
        str(node.slice.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if not isinstance(node.ctx, ast.Load) and ast.unparse(node.value) == name
    ]


def _set_once(function: Function) -> dict[str, ast.expr]:
    """Return, by variable, the values of variables set once: by an assignment to only this name."""
    names = _names_set(function)
    names += [node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)]
    return {
        node.targets[0].id: node.value
        for node in own_nodes(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if len(node.targets) == 1 and names.count(node.targets[0].id) == 1
    }


def _columns(value: ast.expr, name: str, own: Sequence[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the columns of the dict `value` that no later `**` may replace. Also yield the columns
    that an assignment `name["column"] = ...` among the nodes `own` sets."""
    if isinstance(value, ast.Dict):
        for index, (key, column) in enumerate(zip(value.keys, value.values, strict=True)):
            if isinstance(key, ast.Constant) and None not in value.keys[index:]:
                yield str(key.value), column
    for node in own:
        match node:
            case ast.Assign(targets=[ast.Subscript(ast.Name(of), ast.Constant(at))], value=item):
                if of == name:
                    yield str(at), item


def _one_value_problem(key: str, column: ast.expr, use: BatchUse) -> str:
    """Return the problem with a column that has one value for all rows, and a fix."""
    written, rows = ast.unparse(column), f"len({use.some_column})"
    fix = f"[{written}] * {rows}" if len(written) < 40 else f"a list of {rows} values"
    match column:
        case ast.GeneratorExp(value, loops):
            fix = ast.unparse(ast.ListComp(value, loops))
        case ast.Call() | ast.JoinedStr() if any(map(use.is_column, ast.walk(column))):
            fix = "a list of values, or set method: map to get single rows"
    return (
        f"{kind_of(column)} in column '{key}' (line {column.lineno}), and a column has one value "
        f"for each row. Write {fix}"
    )


def columns_returned(function: Function, batch: str) -> tuple[list[str], str] | None:
    """Return the columns of the dict literal that a function returns, and a fix that adds the other
    columns of the batch. Return None if the function returns in any other way."""
    match [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]:
        case [ast.Dict(keys, values)] if all(isinstance(key, ast.Constant) for key in keys):
            merged = ast.unparse(ast.Dict([None, *keys], [ast.Name(batch), *values]))
            fix = f"Write return {merged} in line {values[0].lineno}" if values else "Return it"
            return [str(ast.literal_eval(key)) for key in keys if key], fix
    return None
