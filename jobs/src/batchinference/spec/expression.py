"""Parses the expression language of filters and computed columns, a safe subset of Python.

This module only parses and checks expressions, and does not need Arrow for it. The pipeline
converts the syntax tree into an Arrow expression.
"""

import ast
import difflib
import io
import keyword
import math
import re
import tokenize
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

from pydantic import Field

from batchinference.spec.base import accepted_by
from batchinference.spec.expression_translation import translated
from batchinference.text import counted

FUNCTIONS = {
    "col": 1,
    "len": 1,
    "lower": 1,
    "upper": 1,
    "strip": 1,
    "abs": 1,
    "int": 1,
    "float": 1,
    "str": 1,
    "round": 1,
    "startswith": 2,
    "endswith": 2,
    "contains": 2,
    "matches": 2,
}
"""The number of arguments of each function."""

CLOCKS = (
    *("now", "today", "utcnow", "getdate", "sysdate", "curdate"),
    *("current_date", "current_timestamp"),
)
"""Functions and names of other languages for the current time. Expressions have no clock."""
_AGGREGATES = ("mean", "avg", "sum", "count", "max", "min", "median", "std", "quantile")
PARAMETER_FIX = (
    "Write the value itself, or {{ params.NAME }} for a parameter, and set it with --set NAME=VALUE"
)
MAX_DEPTH = 100
"""Maximum depth of a syntax tree. It prevents a RecursionError."""
MAX_INTEGER = 2**63 - 1
MAX_DIGITS = 15
"""The maximum number of decimal places of `round`."""
MAX_ITEMS = 2**31 - 1
"""The maximum length of an Arrow list."""

MAX_TRANSLATED = 200
"""Maximum length of an invalid expression for which a message shows a translation."""

_FIX = re.compile(r"\. (?:Use|Compare|Write|Add) |; did you mean")
"""The separator between the problem and the fix in a message."""
_PLAIN_TEXT = re.compile(r"\w*[./:@-][\w./:@-]*")
"""Matches what is probably a text without quotes, such as a path."""
_TEXT = re.compile(r"'[^']*'?|\"[^\"]*\"?")
_ASSIGNMENT = re.compile(r"(?<![=!<>])=(?![=<>])")
_CHANGE = re.compile(
    r"(?P<name>\w+) *(?:(?P<sign>[-+*/%])=|:=|=(?= *(?P=name) *[-+*/%])) *(?P<value>.+)"
)
"""Matches a statement that changes a variable, such as `n += 1`."""
_REFERENCE = re.compile(r"(?:\$\{?|\{\{) *([a-z]\w*)")
"""Matches a reference to a variable in the syntax of other tools, such as ${name}."""
_COMPARED = re.compile(r"\b(\w+)\b(?=\s*(?:[=!<>)]|(?:is|in|not)\b|$))")
"""Matches a word that can be a column, because a comparison, `)` or the end follows."""
_KEY = re.compile(r"\.(\w+)|\[(\d+)\]|\['([^']+)'\]")
_UNCLOSED = re.compile(r"(?:'(?=[(\[{]' was never))?([(\[{]|unterminated string)")
"""Matches the errors of Python about a bracket or a quote that is not closed."""
_CLOSING = {"(": "')'", "[": "']'", "{": "'}'", "unterminated string": "quote"}
_KEYWORDS = ("and", "or", "not", "in", "is", "if", "else", "None", "True", "False")
"""Python keywords that the language supports."""


def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression, with negative numbers as constants. Raises
    ValueError for an invalid expression. The message shows a translation if there is one."""
    try:
        return _checked_tree(text)
    except ValueError as error:
        raise ValueError(_with_translation(text, str(error))) from None


def _with_translation(text: str, message: str) -> str:
    """Return the message about an invalid expression, with its translation, if any, as the fix."""
    problem, translation = _FIX.split(message)[0], None
    are_apart = "side by side" in message and re.search("['\"] +['\"]", text)
    if not (_CHANGE.fullmatch(text) or are_apart):
        translation = _translation(text)
    if translation is None and "\n" in text.strip():
        joined = re.sub(r"\s*\n\s*", " ", text.strip())
        translation = _translation(joined) or (joined if columns_in(joined) else None)
        if translation is not None:
            problem = "a line break ends an expression, except in brackets"
    if translation is None and not _PLAIN_TEXT.fullmatch(text):
        return message
    fix = translation or f'"{text!r}" for a text'
    if translation == f"col({text!r})":
        fix = f'{translation} for a column, or "{text!r}" for a text'
    return f"{problem}. Write {fix}"


def _check_reads_column(text: str) -> None:
    if not columns_read_by(text):
        match parse_expression(text):
            case ast.Constant(str(inner)) if columns_in(inner):
                raise ValueError(f"it is a text, in quotes. Write {inner}")
            case (
                ast.Compare(
                    left=ast.Constant(value=str(name)), comparators=[ast.Constant()]
                ) as comparison
            ) if name:
                comparison.left = syntax_tree(code_of(name))
                raise ValueError(f"it reads no column. Write {ast.unparse(comparison)}")
        raise ValueError("it reads no column. Use a column name, or col('NAME')")


def columns_in(text: str) -> frozenset[str]:
    """Return the columns that an expression reads; empty if the text is not a valid expression."""
    try:
        return columns_read_by(text)
    except ValueError:
        return frozenset()


def _checked_tree(text: str) -> ast.expr:
    tree: ast.expr = _FoldNegativeNumbers().visit(syntax_tree(text))
    _check(tree)
    return tree


def syntax_tree(text: str) -> ast.expr:
    """Return the syntax tree of a Python expression. Raises ValueError if the text is not an
    expression, or is nested too deeply."""
    text = text.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # no warnings about escapes such as \d
            tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        where, fix = _position(error, text), _fix_of_syntax(text, error.msg)
        problem = error.msg.partition(". ")[0]  # without the guesses of Python
        raise ValueError(f"not an expression: {problem} at {where}{fix}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {error or 'nested too deeply'}") from None
    if _has_adjacent_texts(text):
        raise ValueError("not an expression: two texts stand side by side. Write a comma between")
    if _depth(tree) > MAX_DEPTH:
        raise ValueError("not an expression: nested too deeply")
    return tree


def _translation(text: str) -> str | None:
    """Return the translation of an invalid expression, as a fix; None if there is none."""
    if len(text) > MAX_TRANSLATED or (translation := translated(text)) == text:
        return None
    try:
        tree = _checked_tree(translation)
    except ValueError:
        return None
    chains = (ops for each in ast.walk(tree) if len(ops := getattr(each, "ops", ())) > 1)
    if _ASSIGNMENT.search(_TEXT.sub("", text)) and any(ast.Eq in map(type, ops) for ops in chains):
        return None  # x = n > 1 may be an assignment
    if not columns_of(tree) or any(map(_may_mean_bits, ast.walk(tree))):
        return None
    return translation + _for_other_types(tree, text)


def _may_mean_bits(node: ast.AST) -> bool:
    """Return whether a translated `and`, `or` or `not` was perhaps an operator for bits. It then is
    within arithmetic, or has an operand that is no condition."""
    match node:
        case ast.BoolOp(values=values):
            return any(map(_is_no_condition, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return isinstance(operand, ast.Constant | ast.BinOp)
        case ast.Compare() | ast.BinOp():
            return any(isinstance(part, ast.BoolOp) for part in ast.iter_child_nodes(node))
    return False


def _is_no_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare):
        return all(isinstance(side, ast.Constant) for side in (node.left, *node.comparators))
    return isinstance(node, ast.Constant | ast.BinOp)


def _for_other_types(tree: ast.expr, text: str) -> str:
    """Return the end of a fix: what to declare, or what to write for a column of another type. It
    is empty if there is nothing to add."""
    if "{{ params.since }}" in ast.unparse(tree):
        return ", and declare the parameter 'since'"
    match tree:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)):
            return f", or {name} == 0 for a number"
        case (
            ast.Call(ast.Name("contains"), [ast.Name(column), item])
            | ast.UnaryOp(operand=ast.Call(ast.Name("contains"), [ast.Name(column), item]))
        ) if " in " in text:
            code = search_in_list(column, item)
            code = code if isinstance(tree, ast.Call) else code.replace(" in ", " not in ", 1)
            return f", or {code} in a python step for a list"
    names = _REFERENCE.findall(text)
    return f", or {{{{ params.{names[0]} }}}} for a parameter" if len(names) == 1 else ""


def search_in_list(column: str, item: ast.expr) -> str:
    """Return code for a python step that searches a column of lists, which no expression can."""
    return f"[{ast.unparse(item)} in each for each in batch[{column!r}]]"


def _has_adjacent_texts(text: str) -> bool:
    """Return whether a valid expression has two texts without an operator between them. Python
    joins such texts, and would read 'it''s' of SQL as `its`."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = [token.type for token in tokens if token.type not in (tokenize.NL, tokenize.NEWLINE)]
    return any(pair == (tokenize.STRING, tokenize.STRING) for pair in pairwise(kinds))


def _fix_of_syntax(text: str, problem: str) -> str:
    """Return the fix for a common mistake; empty for other syntax errors. Such mistakes are a
    missing bracket, a loop, `=` instead of `==`, and a column with the name of a keyword."""
    if problem.startswith("unmatched"):
        return f". Remove the {problem.split()[1]}"
    if unclosed := _UNCLOSED.match(problem):
        if "string" in problem and '"' not in text and text.count("'") > 2:
            return ". Write a text that has ' in it with double quotes"
        return f". Add the {_CLOSING[unclosed[1]]} that is missing"
    if change := _CHANGE.fullmatch(text):
        name, sign, value = change.groups()
        return f". Use a step addColumns: {{{name}: {f'{name} {sign} ' if sign else ''}{value}}}"
    if re.match(r"(?:for|while)\b.*:", text):
        return ", because expressions have no loops. Use a python step"
    code = _TEXT.sub("", text)
    for name in _COMPARED.findall(code):
        if keyword.iskeyword(name) and name not in _KEYWORDS:
            return f". Write col('{name}') for a column of that name"
    is_comparison = _ASSIGNMENT.search(code) and not re.search("[<>]", code)
    return ". Compare with '=='" if is_comparison else ""


def _position(error: SyntaxError, text: str) -> str:
    line, character = error.lineno or 0, error.offset or 0
    if line > 1:
        return f"line {line}"
    return f"character {character}" if 0 < character <= len(text) else "its end"


def _depth(tree: ast.AST) -> int:
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        depth += 1
    return depth


class _FoldNegativeNumbers(ast.NodeTransformer):
    """Replaces the negation of a number by a negative constant."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(number, bool) or not isinstance(number, int | float):
            return node
        return ast.Constant(-number) if isinstance(node.op, ast.USub) else node


def column_of(node: ast.AST) -> str | None:
    """Return NAME if a node is NAME or col('NAME'); None for any other node."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=name)]):
            return str(name)
    return None


def columns_of(tree: ast.expr) -> set[str]:
    """Return the columns that an expression reads."""
    functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return _columns(node for node in ast.walk(tree) if node not in functions)


def _columns(nodes: Iterable[ast.AST]) -> set[str]:
    return {name for name in map(column_of, nodes) if name is not None}


@lru_cache(maxsize=1024)
def columns_read_by(text: str) -> frozenset[str]:
    """Return the columns that an expression reads. Raises ValueError like `parse_expression`.

    The result is cached, because the operator parses the expressions of all jobs, and a long
    expression takes 10 ms.
    """
    return frozenset(columns_of(parse_expression(text)))


def columns_with_items(tree: ast.expr) -> set[str]:
    """Return the columns whose fields, items or length an expression reads."""
    values: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                values.append(value)
            case ast.Call(func=ast.Name(id="len"), args=[value]):
                values.append(value)
    return _columns(values)


def code_of(column: str) -> str:
    """Return the expression that reads a column: NAME, or col('NAME') if it is no identifier."""
    plain = column.isidentifier() and not keyword.iskeyword(column)
    return column if plain else f"col({column!r})"


def names_compared_in(text: str) -> set[str]:
    """Return the names on the right side of `==` and `!=` in a valid expression."""
    compared = [node for node in ast.walk(parse_expression(text)) if isinstance(node, ast.Compare)]
    pairs = [pair for node in compared for pair in zip(node.ops, node.comparators, strict=True)]
    equal = (right for op, right in pairs if isinstance(op, ast.Eq | ast.NotEq))
    return {right.id for right in equal if isinstance(right, ast.Name)}


def _check(node: ast.expr) -> None:
    """Raise ValueError if a node or one of its parts is not supported."""
    for part in _checked_operands(node):
        _check(part)


def _checked_operands(node: ast.expr) -> list[ast.expr]:
    """Return the parts of a node that the caller must check. Raises ValueError for a wrong node."""
    match node:
        case ast.BoolOp(values=values):
            _check_conditions(values)
            return values
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            return [operand]
        case ast.BinOp(
            ast.BinOp(ast.Constant(int(year)), ast.Sub(), ast.Constant(int(month))),
            ast.Sub(),
            ast.Constant(int(day)),
        ) if 1900 < year < 2200 and 0 < month < 13 and 0 < day < 32:
            raise ValueError(f"'{ast.unparse(node)}' is a difference of numbers")
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.Mod(), right):
            return [left, right]
        case ast.Compare():
            return _compared(node)
        case ast.IfExp(test, body, orelse):
            return [test, body, orelse]
    return _checked_parts(node)


def _checked_parts(node: ast.expr) -> list[ast.expr]:
    """Return the arguments of a call, or the value whose field or item is read; empty for a
    constant or a name. Raises ValueError for any other node."""
    match node:
        case ast.Call():
            _check_call(node)
            return node.args
        case ast.Subscript(value=value):
            _check_key(node)
            return [value]
        case ast.Attribute(value=value):
            return [value]
        case ast.Constant(value=bool() | int() | float() | str() | bytes() | None as value):
            if isinstance(value, int) and abs(value) > MAX_INTEGER:
                raise ValueError(f"an integer is at most {MAX_INTEGER}")
            if isinstance(value, float) and math.isinf(value):
                raise ValueError("a number is at most 1.7e308")
            return []
        case ast.Name():
            return []
    what = f"'{ast.unparse(node)[:60]}' is not part of the expression language"
    raise ValueError(f"{what}. Use a python step")


def _check_call(node: ast.Call) -> None:
    """Raise ValueError if the function of a call is unknown, or its arguments are wrong."""
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    word = name.lower().rpartition(".")[2]
    if name not in FUNCTIONS and word in (*CLOCKS, *_AGGREGATES):
        what = "there is no clock" if word in CLOCKS else "an expression sees one row, and not all"
        raise ValueError(f"unknown function '{name}': {what}. {PARAMETER_FIX}")
    if name not in FUNCTIONS:
        near = difflib.get_close_matches(name, FUNCTIONS, 1, 0.8)
        fix = f". Use one of {', '.join(FUNCTIONS)}, or a python step"
        raise ValueError(
            f"unknown function '{name}'{f'; did you mean {near[0]!r}?' if near else fix}"
        )
    if name == "round" and len(node.args) > 1 and not node.keywords:
        _check_digits(node.args[1:])
        return
    if node.keywords or len(node.args) != FUNCTIONS[name]:
        raise ValueError(f"{name}() takes {counted(FUNCTIONS[name], 'argument')}")
    for argument in node.args if name == "col" else node.args[1:]:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            what = f"the last argument of {name}() must be a string in quotes"
            raise ValueError(f"{what}{_fix_of_argument(name, node.args)}")


def _fix_of_argument(name: str, arguments: Sequence[ast.expr]) -> str:
    """Return the fix if the last argument of a function is an unquoted name; empty otherwise."""
    match name, arguments:
        case "col", [ast.Name(column)]:
            return f". Write col('{column}')"
        case _, [ast.Constant(str()) as text, ast.Name(column)]:
            return f". Write {name}({column}, {ast.unparse(text)})"
        case _, [_, ast.Name(word)]:
            return f". Write '{word}' for this text; a column needs a python step"
    return ""


def _check_digits(nodes: list[ast.expr]) -> None:
    values = [node.value if isinstance(node, ast.Constant) else None for node in nodes]
    if len(values) > 1 or type(values[0]) is not int or not 0 <= values[0] <= MAX_DIGITS:
        raise ValueError(f"round() takes 1 argument, and may have 0 to {MAX_DIGITS} digits")


def key_of(node: ast.Attribute | ast.Subscript) -> str | int:
    """Return `field` for a.field and a['field'], and 0 for a[0]; empty for any other item."""
    if isinstance(node, ast.Attribute):
        return node.attr
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str | int) else ""


def root_of(field: str) -> str:
    """Return the column in a path of fields and items: `name` for `name.field` or `name[0]`."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def is_part_of_column(field: str) -> bool:
    """Return whether a text is a path to a part of a column, such as `name.field` or `name[0]`."""
    return re.fullmatch(rf"[^.\[\]]+(?:{_KEY.pattern})+", field) is not None


def keys_of(field: str) -> list[str | int]:
    """Return the fields and indexes in a path: `field` and 0 for `name.field[0]`."""
    matches = _KEY.findall(field.removeprefix(root_of(field)))
    return [int(index) if index else name or quoted for name, index, quoted in matches]


def _check_key(node: ast.Subscript) -> None:
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if isinstance(key, str) or (type(key) is int and 0 <= key < MAX_ITEMS):
        return
    if isinstance(node.slice, ast.Slice):
        what = f"'{ast.unparse(node)[:60]}' cuts a text or list, which no expression can do"
        raise ValueError(f"{what}. Use a python step, or chunk to cut texts into pieces")
    raise ValueError(
        f"'{ast.unparse(node)[:60]}' reads neither a field nor an item. Write a field as "
        "a['name'], and an item as a[0], counted from 0"
    )


def _compared(node: ast.Compare) -> list[ast.expr]:
    """Return the operands of a comparison, without lists of `in`. Raises ValueError if invalid."""
    operands = [node.left]
    left = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, ast.In | ast.NotIn):
            _check_list(right)
        else:
            _check_null(left, operator, right)
            operands.append(right)
        left = right
    return operands


def _check_null(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> None:
    if isinstance(operator, ast.Is | ast.IsNot):
        if not _is_none(right):
            sign = "==" if isinstance(operator, ast.Is) else "!="
            raise ValueError(f"'is' can only compare with None. Use '{sign}'")
    elif _is_none(left) or _is_none(right):
        raise ValueError("a comparison with None is never true. Use 'is None' or 'is not None'")


def _check_conditions(values: Sequence[ast.expr]) -> None:
    for value in values:
        if isinstance(value, ast.Constant) and not isinstance(value.value, bool | None):
            raise ValueError(
                f"{value.value!r} is not a condition, so it cannot be used with 'and' or 'or'"
            )


def _check_list(node: ast.expr) -> None:
    elements = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    for element in elements:
        if element is node or not isinstance(element, ast.Constant):
            raise ValueError(
                "'in' needs a list of constants on its right. Write a list such as ['a', 'b']"
            )
        _check(element)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_Text = Annotated[str, Field(min_length=1, max_length=2048)]
Expression = Annotated[_Text, accepted_by(columns_read_by)]
Condition = Annotated[_Text, accepted_by(_check_reads_column)]
"""An expression that reads a column."""
