"""Checks that the code of a step can be called as the step says, by reading its source.

The code is not run, so only what is certain is a problem: nothing is said about decorated or
conditional definitions, and about classes with a base class of another module.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import TypeAlias

from batchinference.spec.problems import did_you_mean
from batchinference.spec.python_step import PythonStep

_REFLECTION = {
    *("setattr", "__setattr__", "globals", "f_globals", "locals", "vars", "__dict__", "exec"),
    "__package__",
}
"""Names in a module that may change any definition."""
_CONSTRUCTION = ("__new__", "__init_subclass__", "__getattribute__", "__getattr__")
"""Methods that change what a class needs or has."""


class _Other(Enum):
    UNKNOWN = "unknown"


_UNKNOWN = _Other.UNKNOWN
_Method: TypeAlias = ast.FunctionDef | _Other | None


def signature_problem(step: PythonStep, module: ast.Module) -> str | None:
    """Return why the callable of a step cannot be called with its arguments; None if it can be, or
    if that is unknown."""
    name = step.callable.partition(":")[2]
    match _definition(module, name):
        case ast.FunctionDef() as function:
            if step.constructor_args or step.constructor_refs:
                return f"constructorArgs needs a class ('{step.callable}'). Use callArgs"
            return _call_problem(step, function, methods=0)
        case ast.ClassDef() as class_:
            return _class_problem(step, _family(module, class_))
    return None


def _class_problem(step: PythonStep, family: Sequence[ast.ClassDef]) -> str | None:
    if not family:
        return None
    given = {
        **dict.fromkeys(step.constructor_args, "constructorArgs"),
        **dict.fromkeys(step.constructor_refs, "constructorRefs"),
    }
    constructor = _method(family, "__init__")
    if constructor is None and given:
        key, field = next(iter(given.items()))
        return f"{field}.{key}: '{step.callable}' has no __init__ with parameters. Remove it"
    if isinstance(constructor, ast.FunctionDef) and (
        problem := _arguments_problem(step.callable, constructor, 1, given, "constructorArgs")
    ):
        return problem
    name = "__call__" if step.predict_batch is None else "predict_batch"
    method = _method(family, name)
    if method is None:
        old = _method(family, "predict_batch") is not None and step.predict_batch is None
        fix = ", or set predictBatch" if old else ""
        written = f"def {name}(self, {_argument(step)})"
        return f"'{step.callable}' has no method {name}. Add '{written}'{fix}"
    return _call_problem(step, method, methods=1) if isinstance(method, ast.FunctionDef) else None


def _argument(step: PythonStep) -> str:
    if step.predict_batch is not None:
        return "values"
    return "batch" if step.method == "mapBatches" else "row"


def _call_problem(step: PythonStep, function: ast.FunctionDef, *, methods: int) -> str | None:
    """Return why a function or method does not take a batch and callArgs. `methods` is the number
    of the arguments before the batch: self."""
    given, arguments = methods + 1, function.args
    if len([*arguments.posonlyargs, *arguments.args]) < given and arguments.vararg is None:
        written = ", ".join([*["self"] * methods, _argument(step)])
        return (
            f"'{step.callable}' is called with a {_argument(step)}, which line {function.lineno} "
            f"does not take. Write 'def {function.name}({written})'"
        )
    named = dict.fromkeys(step.call_args, "callArgs")
    return _arguments_problem(step.callable, function, given, named, "callArgs")


def _arguments_problem(
    path: str, function: ast.FunctionDef, given: int, named: Mapping[str, str], field: str
) -> str | None:
    """Return the problem with the keyword arguments of a function. `given` arguments are passed by
    position. `named` holds the field of the job that sets each keyword argument."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    by_name = [arg.arg for arg in positional[max(given, len(arguments.posonlyargs)) :]]
    by_name += [arg.arg for arg in arguments.kwonlyargs]
    taken = {arg.arg for arg in arguments.args if arg in positional[:given]}
    for key, setting in named.items():
        if key in taken or (key not in by_name and arguments.kwarg is None):
            known = f". Its parameters are {', '.join(by_name)}" if by_name else ". Remove it"
            fix = did_you_mean(key, by_name) or known
            return f"{setting}.{key}: '{path}' has no parameter '{key}' to set{fix}"
    required = {arg.arg for arg in positional[: len(positional) - len(arguments.defaults)]}
    defaults = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    required |= {arg.arg for arg, default in defaults if default is None}
    missing = [name for name in by_name if name in required and name not in named]
    if not missing:
        return None
    values = ", ".join(f"{name}: ..." for name in missing)
    return f"'{path}' needs {' and '.join(missing)}. Set {field}: {{{values}}}"


def _definition(module: ast.Module, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    """Return the definition of a name, if the module binds the name only there and does not change
    the object."""
    nodes = list(ast.walk(module))
    if any(map(_may_change_definitions, nodes)):
        return None
    if sum(_binds(node, name) for node in nodes) != 1:
        return None
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return None if node.decorator_list else node
    return None


def _may_change_definitions(node: ast.AST) -> bool:
    """Return whether a node may change any definition, such as `c.__call__ = f` for any class."""
    if isinstance(node, ast.Attribute):
        return node.attr in _REFLECTION or any(
            _sets(node, name) for name in ("__call__", "__init__")
        )
    return isinstance(node, ast.Name) and node.id in _REFLECTION


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a node may bind a name, or change an attribute of the object of this name."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name == name
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return node.id == name
        case ast.Attribute(value=ast.Name(id=changed), ctx=ast.Store() | ast.Del()):
            return changed == name
        case ast.alias():
            return "*" in node.name or (node.asname or node.name.partition(".")[0]) == name
        case ast.Global() | ast.Nonlocal():
            return name in node.names
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            return node.name == name
    return False


def _family(module: ast.Module, class_: ast.ClassDef) -> list[ast.ClassDef]:
    """Return a class and its base classes, most derived first; empty if one of them is unknown."""
    family = [class_]
    while bases := family[-1].bases:
        name = bases[0].id if isinstance(bases[0], ast.Name) and len(bases) == 1 else ""
        if name == "object":
            break
        base = _definition(module, name)
        if not isinstance(base, ast.ClassDef) or base in family:
            return []
        family.append(base)
    special = any(_method(family, name) is not None for name in _CONSTRUCTION)
    return [] if special or any(each.keywords for each in family) else family


def _method(family: Collection[ast.ClassDef], name: str) -> _Method:
    """Return a method; None if the classes have none, and _UNKNOWN if it is not only defined."""
    for class_ in family:
        bound = [node for node in ast.walk(class_) if _binds(node, name) or _sets(node, name)]
        if not bound:
            continue
        (first, *others) = bound
        is_plain = isinstance(first, ast.FunctionDef) and first in class_.body and not others
        if isinstance(first, ast.FunctionDef) and is_plain and not first.decorator_list:
            return first
        return _UNKNOWN
    return None


def _sets(node: ast.AST, name: str) -> bool:
    """Return whether a node sets an attribute of this name, such as self.name."""
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
