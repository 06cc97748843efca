"""Compiles the functions of a module, and replaces the code of the running functions."""

from __future__ import annotations

import ast
import gc
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

HIT = "__mutant_is_reached__"
"""The name of the builtin function that instrumented code calls when it runs."""


def function_code(source: str, file: str, name: str, nth: int) -> CodeType:
    """Return the code of the nth function or method with a qualified name."""
    codes = _functions(compile(source, file, "exec", dont_inherit=True))
    return [code for code in codes if code.co_qualname == name][nth]


class Running:
    """All function objects in this process that are defined in the given files."""

    def __init__(self, files: Iterable[str]) -> None:
        suffixes = tuple(files)
        gc.unfreeze()
        self._functions = [
            thing
            for thing in gc.get_objects()
            if type(thing) is FunctionType and thing.__code__.co_filename.endswith(suffixes)
        ]
        gc.freeze()

    def replace(self, old: CodeType, new: CodeType) -> None:
        for function in self._functions:
            if _same_place(function.__code__, old):
                function.__code__ = new

    def instrument(self, source: str, file: str, lines: Iterable[tuple[str, int]]) -> None:
        """Insert a call of HIT before the statement at each line. It gets the name of the line."""
        tree = ast.parse(source)
        for name, line in lines:
            _insert(tree, line, ast.parse(f"{HIT}({name!r})").body[0])
        old = _functions(compile(source, file, "exec", dont_inherit=True))
        new = _functions(compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True))
        for before, after in zip(old, new, strict=True):
            self.replace(before, after)


def _same_place(running: CodeType, compiled: CodeType) -> bool:
    return (
        running.co_qualname == compiled.co_qualname
        and running.co_firstlineno == compiled.co_firstlineno
        and running.co_filename.endswith(compiled.co_filename)
    )


def _functions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions and methods, except functions nested in functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            else:
                yield from _functions(constant)


def _insert(tree: ast.Module, line: int, statement: ast.stmt) -> None:
    """Insert the statement before the innermost statement that contains the line."""
    blocks = [
        block
        for node in ast.walk(tree)
        for field in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, field, None), list)
    ]
    around = [
        (node.end_lineno - node.lineno, -node.lineno, number, node)
        for number, block in enumerate(blocks)
        for node in block
        if node.lineno <= line <= node.end_lineno
    ]
    *_, number, node = min(around, key=lambda entry: entry[:3])
    blocks[number].insert(blocks[number].index(node), ast.copy_location(statement, node))
