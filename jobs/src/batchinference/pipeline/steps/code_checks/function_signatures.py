"""Checks whether the callable of a step takes the step's arguments, by reading its source code.

Only reports code that always fails. Definitions are not checked if they are conditional or have a
decorator other than dataclass. Classes with a base class of another module are not checked."""

import ast
import builtins
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from batchinference.pipeline.steps.code_checks.batch_use import own_nodes
from batchinference.pipeline.steps.code_checks.return_statements import (
    KIND_OF_RESULT,
    Function,
    bound_names,
    columns_read,
    columns_returned,
    kind_of,
    return_problem,
)
from batchinference.spec.problems import did_you_mean
from batchinference.spec.python_step import PythonStep

_REFLECTION = {
    *("setattr", "__setattr__", "globals", "f_globals", "locals", "vars", "__dict__", "exec"),
    "__package__",
}
"""Names in a module that may change any definition."""
_CALLED = ("__init__", "__call__", "predict_batch")
"""The methods that a step calls."""
_CONSTRUCTION = ("__new__", "__init_subclass__", "__getattribute__", "__getattr__")
"""Methods that change the arguments or the methods of a class."""
_UNKNOWN = "unknown"
"""Stands for a method that is decorated or replaced, or for an unusual constructor."""
_Method: TypeAlias = Function | str | None
_Definition: TypeAlias = Function | ast.ClassDef | ast.Assign | None
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_USUAL_IMPORTS = {
    **{"np": "import numpy as np", "pd": "import pandas as pd", "pa": "import pyarrow as pa"},
    **{"pl": "import polars as pl", "Image": "from PIL import Image"},
    **{name: f"import {name}" for name in ("numpy", "pandas", "torch", "re", "json", "math", "os")},
}


def signature_problem(step: PythonStep, module: ast.Module) -> str | None:
    """Return the problem of the callable of a step; None if no problem is known. The callable does
    not take the arguments, its result cannot be used, or it reads an undefined name."""
    name, _, method = step.callable.partition(":")[2].partition(".")
    definition = _definition(module, name)
    if isinstance(definition, ast.ClassDef):
        family = _family(module, definition)
        if method:
            return _method_problem(step, family, name, method)
        return _class_problem(step, family) or _undefined_problem(step, module, definition)
    if definition is None or method:
        return None
    if isinstance(definition, ast.Assign):
        return _value_problem(step, module, definition.value)
    if step.constructor_args or step.constructor_refs:
        return f"constructorArgs needs a class ('{step.callable}'). Use callArgs"
    problem = _call_problem(step, definition)
    return problem or _undefined_problem(step, module, definition)


def columns_of_code(step: PythonStep, module: ast.Module) -> dict[str, int]:
    """Return the columns that the code of a step reads in every call, with the line of each."""
    function, batch = _function_of(step, module)
    return columns_read(function, batch) if function else {}


def columns_after_code(step: PythonStep, module: ast.Module) -> tuple[list[str], str] | None:
    """Return the columns that the code of a step returns, and the fix that makes the code return
    all other columns, too. Return None if the columns are unknown."""
    function, batch = _function_of(step, module)
    return columns_returned(function, batch) if function and step.method != "flatMap" else None


def _function_of(step: PythonStep, module: ast.Module) -> tuple[ast.FunctionDef | None, str]:
    """Return the function or method that a step calls, and the name of its parameter for the batch
    or row. The function is None if it is unknown."""
    definition: object = _definition(module, step.callable.partition(":")[2])
    index = 0
    if isinstance(definition, ast.ClassDef):
        definition, index = _method(_family(module, definition), "__call__"), 1
    if not isinstance(definition, ast.FunctionDef) or step.predict_batch is not None:
        return None, ""
    positional = [*definition.args.posonlyargs, *definition.args.args]
    return (definition, positional[index].arg) if len(positional) > index else (None, "")


def factory_problem(path: str, arguments: Mapping[str, object], module: ast.Module) -> str | None:
    """Return why the `factory` of a model does not take its arguments; None if it may take them."""
    definition = _definition(module, path.partition(":")[2])
    function: object = definition
    if isinstance(definition, ast.ClassDef):
        function = _constructor(_family(module, definition))
    if not isinstance(function, ast.FunctionDef):
        return None
    is_class, named = function is not definition, dict.fromkeys(arguments, "factoryArgs")
    return _arguments_problem(path, function, int(is_class), named, "factoryArgs")


def _method_problem(
    step: PythonStep, family: Sequence[ast.ClassDef], name: str, method: str
) -> str | None:
    if not isinstance(_method(family, method), _FUNCTIONS):
        return None  # such as a static method
    fix = f"Name only the class {name}, with {method} renamed to __call__, or write a function"
    return f"'{step.callable}' is a method, and there is no object of {name} to call it on. {fix}"


def _value_problem(step: PythonStep, module: ast.Module, value: ast.expr) -> str | None:
    """Return the problem of a callable that a module defines by assigning `value`."""
    match value:
        case ast.Lambda(args=args, body=body):
            returned: list[ast.stmt] = [ast.copy_location(ast.Return(body), body)]
            name = step.callable.partition(":")[2]
            function = ast.FunctionDef(name, args, returned, [], lineno=value.lineno)
            return _call_problem(step, function)
        case ast.Call(
            func=ast.Name(id="partial") | ast.Attribute(attr="partial"),
            args=[ast.Name(id=inner), *positional],
        ) if not any(isinstance(each, ast.Starred) for each in positional):
            target = _definition(module, inner)
            names = [keyword.arg for keyword in value.keywords]
            if isinstance(target, ast.FunctionDef) and None not in names:
                bound = dict.fromkeys(filter(None, names), "partial")
                return _call_problem(step, target, before=len(positional), bound=bound)
        case ast.Call(func=ast.Name(id=name)) if isinstance(
            class_ := _definition(module, name), ast.ClassDef
        ):
            family = _family(module, class_)
            return _call_method_problem(step, family) if family else None
    kind = kind_of(value)
    return (
        f"'{step.callable}' is {kind}, not a function. Name a function or class" if kind else None
    )


def _class_problem(step: PythonStep, family: Sequence[ast.ClassDef]) -> str | None:
    if not family:
        return None
    arguments = {
        **dict.fromkeys(step.constructor_args, "constructorArgs"),
        **dict.fromkeys(step.constructor_refs, "constructorRefs"),
    }
    constructor = _constructor(family)
    if constructor is None and arguments:
        key, field = next(iter(arguments.items()))
        return f"{field}.{key}: '{step.callable}' has no __init__ with parameters. Remove it"
    if isinstance(constructor, ast.FunctionDef) and (
        problem := _arguments_problem(step.callable, constructor, 1, arguments, "constructorArgs")
    ):
        return problem
    return _call_method_problem(step, family)


def _call_method_problem(step: PythonStep, family: Sequence[ast.ClassDef]) -> str | None:
    name = "__call__" if step.predict_batch is None else "predict_batch"
    method = _method(family, name)
    if method is None:
        old = _method(family, "predict_batch") is not None and step.predict_batch is None
        fix = ", or set predictBatch" if old else ""
        written = f"def {name}(self, {_argument(step)})"
        return f"'{step.callable}' has no method {name}. Add '{written}'{fix}"
    return _call_problem(step, method, before=1) if isinstance(method, _FUNCTIONS) else None


def _constructor(family: Sequence[ast.ClassDef]) -> _Method:
    """Return the constructor of a class; None if it has none, _UNKNOWN if code may replace it."""
    constructor = _method(family, "__init__")
    if not any(_is_dataclass(each) for class_ in family for each in class_.decorator_list):
        return constructor
    source = "".join(map(ast.unparse, family))
    if len(family) > 1 or any(word in source for word in ("KW_ONLY", "ClassVar", "init=")):
        return _UNKNOWN
    return constructor or _dataclass_constructor(family[0])


def _dataclass_constructor(class_: ast.ClassDef) -> ast.FunctionDef | None:
    """Return the constructor of a plain dataclass, with keyword arguments."""
    fields = [
        f"{node.target.id}{'=0' if node.value else ''}"
        for node in class_.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    names = ", ".join(["self", *(["*", *fields] if fields else [])])
    constructor = ast.parse(f"def __init__({names}): pass").body[0]
    return constructor if isinstance(constructor, ast.FunctionDef) else None


def _is_dataclass(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in ("dataclass", "dataclasses.dataclass")


def _argument(step: PythonStep) -> str:
    """Return the name of the argument of a call, for messages."""
    if step.predict_batch is not None:
        return "values"  # a list
    return "batch" if step.method == "mapBatches" else "row"


def _call_problem(
    step: PythonStep, function: Function, *, before: int = 0, bound: Mapping[str, str] | None = None
) -> str | None:
    """Return why a function does not take a batch and callArgs, or the problem of its result.
    `before` is the number of arguments before the batch: `self`, or the positional arguments of
    functools.partial. `bound` has the keyword arguments of functools.partial."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    if not before and needed > 1 + len(step.call_args) and positional[0].arg == "self":
        fix = f"Write 'def {function.name}({_argument(step)})'"
        return (
            f"'{step.callable}' is a function, which has no 'self' (line {function.lineno}). {fix}"
        )
    if len(positional) <= before and arguments.vararg is None:
        written = ", ".join([*["self"] * before, _argument(step)])
        what = "a list of values" if step.predict_batch is not None else f"a {_argument(step)}"
        return (
            f"'{step.callable}' is called with {what}, which line {function.lineno} "
            f"does not take. Write 'def {function.name}({written})'"
        )
    named = {**(bound or {}), **dict.fromkeys(step.call_args, "callArgs")}
    problem = _arguments_problem(step.callable, function, before + 1, named, "callArgs")
    method = step.method if step.predict_batch is None else "predictBatch"
    batch = positional[before].arg if len(positional) > before else ""
    return problem or return_problem(step.callable, method, function, batch)


def _undefined_problem(
    step: PythonStep, module: ast.Module, code: Function | ast.ClassDef
) -> str | None:
    """Return the problem of the first undefined name in code that always runs; None if none."""
    known = {*dir(builtins), "__file__", "__path__", "__builtins__", "__annotations__"}
    known |= {"__class__", "__module__", "__qualname__"}
    for node in ast.walk(module):
        known.update([node.arg] if isinstance(node, ast.arg) else bound_names(node))
    if "*" in known or any(map(_may_change_definitions, ast.walk(module))):
        return None
    if any(isinstance(node, ast.Name) and node.id == "NameError" for node in ast.walk(code)):
        return None
    types = [node.annotation for node in ast.walk(code) if isinstance(node, ast.AnnAssign)]
    in_types = {id(node) for each in types for node in ast.walk(each)}
    parts = code.body if isinstance(code, ast.ClassDef) else [code]
    called = [each for each in parts if isinstance(each, _FUNCTIONS)]
    called = [each for each in called if each is code or each.name in _CALLED]
    nodes = (node for each in called for node in own_nodes(each, certain=True))
    keys = {id(key) for node in ast.walk(code) if isinstance(node, ast.Dict) for key in node.keys}
    for node in (node for node in nodes if isinstance(node, ast.Name)):
        if node.id not in known and id(node) not in in_types:
            usual = _USUAL_IMPORTS.get(node.id)
            if id(node) in keys:
                reads_name = f"reads {node.id} in line {node.lineno}, which is not defined"
                return f"'{step.callable}' {reads_name}. Write '{node.id}' in quotes for a name"
            fix = f". Add '{usual}'" if usual else did_you_mean(node.id, sorted(known))
            name = f"'{node.id}' in line {node.lineno}"
            return f"'{step.callable}' reads {name}, which is not defined{fix or '. Define it'}"
    return None


def _arguments_problem(
    path: str, function: Function, positional_count: int, named: Mapping[str, str], field: str
) -> str | None:
    """Return the problem with the keyword arguments of a function. `positional_count` arguments are
    passed by position. `named` has each keyword argument, and the field of the job that sets it.
    `field` is the field that can set missing arguments."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    by_name = [arg.arg for arg in positional[max(positional_count, len(arguments.posonlyargs)) :]]
    by_name += [arg.arg for arg in arguments.kwonlyargs]
    by_position = {arg.arg for arg in arguments.args if arg in positional[:positional_count]}
    for key, setting in named.items():
        if key in by_position or (key not in by_name and arguments.kwarg is None):
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


def _definition(module: ast.Module, name: str) -> _Definition:
    """Return the only definition of a name in a module, at the top level. Return None if there is
    none, if code may replace it, or if it has a decorator other than dataclass."""
    nodes = list(ast.walk(module))
    if any(map(_may_change_definitions, nodes)):
        return None
    if sum(_binds(node, name) for node in nodes) != 1:
        return None
    for node in module.body:
        if isinstance(node, ast.Assign):
            if isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
                return node
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node.name == name:
            return node if all(map(_is_dataclass, node.decorator_list)) else None
    return None


def _may_change_definitions(node: ast.AST) -> bool:
    """Return whether a node may change any definition, as `c.__call__ = f` does."""
    if isinstance(node, ast.Attribute):
        return node.attr in _REFLECTION or any(
            _sets(node, name) for name in ("__call__", "__init__")
        )
    hides_builtin = not KIND_OF_RESULT.keys().isdisjoint(bound_names(node))
    return hides_builtin or (isinstance(node, ast.Name) and node.id in _REFLECTION)


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a node may set a name, or change an attribute of the object with the name."""
    match node:
        case ast.Attribute(value=ast.Name(id=changed), ctx=ast.Store() | ast.Del()):
            return changed == name
    return not {name, "*"}.isdisjoint(bound_names(node))


def _family(module: ast.Module, class_: ast.ClassDef) -> list[ast.ClassDef]:
    """Return a class and its base classes; an empty list if one of them is unknown or unusual."""
    family = [class_]
    while bases := family[-1].bases:
        name = bases[0].id if isinstance(bases[0], ast.Name) and len(bases) == 1 else ""
        if name == "object":
            break
        base = _definition(module, name)
        if not isinstance(base, ast.ClassDef) or base in family:
            return []
        family.append(base)
    is_unusual = any(_method(family, name) is not None for name in _CONSTRUCTION)
    return [] if is_unusual or any(each.keywords for each in family) else family


def _method(family: Collection[ast.ClassDef], name: str) -> _Method:
    """Return the method of a class; None if it has none, _UNKNOWN if decorated or replaced."""
    for class_ in family:
        bound = [node for node in ast.walk(class_) if _binds(node, name) or _sets(node, name)]
        if not bound:
            continue
        (first, *others) = bound
        is_plain = isinstance(first, _FUNCTIONS) and first in class_.body and not others
        if isinstance(first, _FUNCTIONS) and is_plain and not first.decorator_list:
            return first
        return _UNKNOWN
    return None


def _sets(node: ast.AST, name: str) -> bool:
    """Return whether a node sets an attribute of this name, such as self.name."""
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
