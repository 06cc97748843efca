"""Finds what to write instead of an expression that does not suit the types of its columns."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from batchinference.pipeline.type_widening import is_list, is_text
from batchinference.spec.expression import parse_expression, search_in_list, syntax_tree
from batchinference.spec.expression_translation import translated

CONVERT = "Convert a column, for example with int(NAME)"
_TEXT_FUNCTIONS = ("lower", "upper", "strip", "startswith", "endswith", "contains", "matches")
_NUMBER_FUNCTIONS = ("abs", "round")
MAX_PARTS = 200
"""An expression with more parts is not corrected, because each part is computed."""
MAX_FIXES = 4
"""Maximum number of parts that are corrected in an expression for a message."""
MAX_EXACT = 2**53
"""Float64 holds all integers up to this number."""
_TRUE = ("true", "yes", "y", "t", "1", "on")
_FALSE = ("false", "no", "n", "f", "0", "off")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", re.ASCII)
Part = tuple[ast.expr, pa.DataType]
"""A part of an expression, and its type."""


def fix_for_types(text: str, type_of: Callable[[ast.expr], pa.DataType]) -> str:
    """Return the fix of an expression for a message. `type_of` returns the type of a part of the
    expression, or raises an exception if the part cannot be computed."""
    search = ""
    for _ in range(MAX_FIXES):
        tree = parse_expression(text)
        if sum(1 for _ in ast.walk(tree)) > MAX_PARTS:
            return CONVERT
        bad, types = _first_bad_part(tree, type_of)
        if bad is None:
            return f"Write {text}{search}"
        children = [part for part in ast.iter_child_nodes(bad) if isinstance(part, ast.expr)]
        search = search or _search_in_list(bad, types)
        fix = _replacement(bad, [(part, types[part]) for part in children if part in types])
        if fix is None:
            break
        text = _replaced(tree, *fix)
    lists = (part for part in children if part in types and is_list(types[part]))
    if (part := next(lists, None)) is not None:
        item = f"Read one item, such as {ast.unparse(part)}[0]"
        return f"{item}{search or ', or make a row of each with a step explode'}"
    if isinstance(bad, ast.Attribute | ast.Subscript) and (other := translated(text)) != text:
        return f"Write {other}"
    if any(map(pa.types.is_temporal, types.values())):
        needs_code = isinstance(bad, ast.Call) or any(map(pa.types.is_duration, types.values()))
        compare = "Compare it with a text such as '2026-01-31'"
        return "Compute it in a python step" if needs_code else compare
    is_cast = isinstance(bad, ast.Call) and ast.unparse(bad.func) in ("float", "int")
    if is_cast and any(map(is_text, types.values())):  # among texts, only UUIDs have no cast
        return "Compare UUIDs with texts"
    is_number = isinstance(bad, ast.Compare) and any(map(_is_number, types.values()))
    return "Compare a number with a number" if is_number else CONVERT


def _search_in_list(node: ast.expr, types: Mapping[ast.expr, pa.DataType]) -> str:
    """Return the end of a fix: how to search in all items of a list. Return an empty text if the
    node does not compare a column of lists with one item."""
    match node:
        case ast.Compare(ast.Name() as column, [ast.Eq()], [ast.Constant() as item]) | ast.Call(
            ast.Name("contains"), [ast.Name() as column, ast.Constant() as item]
        ) if is_list(kind := types.get(column, pa.null())):
            if not _alike(kind.value_type, pa.scalar(item.value).type):
                return ""
            return f", or {search_in_list(column.id, item)} in a python step for any item"
    return ""


def _first_bad_part(
    tree: ast.expr, type_of: Callable[[ast.expr], pa.DataType]
) -> tuple[ast.expr | None, dict[ast.expr, pa.DataType]]:
    """Return a part that cannot be computed although its own parts can; None if there is none. Also
    return the types of the parts that were computed before."""
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    types: dict[ast.expr, pa.DataType] = {}
    for node in reversed(list(ast.walk(tree))):  # inner parts first
        is_list_of_in = isinstance(node, ast.List | ast.Tuple)
        if isinstance(node, ast.expr) and not is_list_of_in and id(node) not in functions:
            try:
                types[node] = type_of(node)
            except Exception:  # noqa: BLE001 - Arrow raises many types
                return node, types
    return None, types


def _replaced(tree: ast.expr, old: ast.expr, new: str) -> str:
    """Return the text of an expression in which the part `old` is replaced by the text `new`."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            """Return the new tree for `old`, and any other node with its parts visited."""
            return syntax_tree(new) if node is old else self.generic_visit(node)

    return ast.unparse(Replace().visit(tree))


def _replacement(node: ast.expr, parts: Sequence[Part]) -> tuple[ast.expr, str] | None:
    """Return the part to replace (the node, or one of its parts) and its new text; None if no fix
    is known. Each function `_for_...` returns the same for one kind of problem."""
    is_search = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
    if (is_search or isinstance(node, ast.Call)) and any(is_list(kind) for _, kind in parts):
        return None  # the first item alone is not what was meant
    if replacement := _for_missing_part(node, parts) or _for_struct_or_list(parts):
        return replacement
    match node:
        case ast.IfExp(test=test):
            tests = (condition_on(ast.unparse(part), kind) for part, kind in parts if part is test)
            written = next(tests, "")
            return (test, written) if written else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            written = condition_on(ast.unparse(operand), dict(parts).get(operand, pa.null()))
            return (node, written.replace("!=", "==")) if written else None
        case ast.BoolOp():
            fixes = ((part, condition_on(ast.unparse(part), kind)) for part, kind in parts)
            return next((fix for fix in fixes if fix[1]), None)
        case ast.Call(func=ast.Name(id=name), args=[value, *_]):
            return _for_argument(name, value)
        case ast.Compare() | ast.BinOp() if len(parts) == 2:
            return _for_pair(node, *parts)
        case ast.Compare(left=left, comparators=[ast.List(values) | ast.Tuple(values)]):
            constants = [each.value for each in values if isinstance(each, ast.Constant)]
            return _for_list_search(node, left, dict(parts).get(left), constants)
    return None


def _for_missing_part(node: ast.expr, parts: Sequence[Part]) -> tuple[ast.expr, str] | None:
    """Replace an attribute or item that a value does not have."""
    match node:
        case ast.Attribute(value=value, attr="length" | "size" | "len"):
            return node, f"len({ast.unparse(value)})"
        case ast.Subscript(value=value, slice=ast.Constant(int())):
            is_struct = any(pa.types.is_struct(kind) for _, kind in parts)
            return (node, ast.unparse(value)) if is_struct else None
    return None


def _for_struct_or_list(parts: Sequence[Part]) -> tuple[ast.expr, str] | None:
    """Replace a struct or a list by the only field or the first item that may be meant."""
    for part, kind in parts:
        others = [other for _, other in parts if other != kind]
        if written := part_of(ast.unparse(part), kind, others, only=True):
            return part, written
    return None


def _for_list_search(
    node: ast.Compare, left: ast.expr, kind: pa.DataType | None, values: Sequence[object]
) -> tuple[ast.expr, str] | None:
    """Replace a search in a list of constants of another type."""
    texts = [value for value in values if isinstance(value, str)]
    if kind is None or len(texts) not in (0, len(values)):
        return None
    if _is_number(kind) and texts and all(map(_is_numeric, texts)):
        operator = "in" if isinstance(node.ops[0], ast.In) else "not in"
        return node, f"{ast.unparse(left)} {operator} [{', '.join(texts)}]"
    is_float = pa.types.is_string(kind) and all(map(_is_exact, values))
    return (left, f"float({ast.unparse(left)})") if is_float else None


def _is_exact(value: object) -> bool:
    """Return whether a constant is a number that a float holds exactly."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= MAX_EXACT  # type: ignore[arg-type]


def part_of(
    written: str, kind: pa.DataType, others: Sequence[pa.DataType], *, only: bool = False
) -> str:
    """Return the expression of a field or item of the value `written`, such as `a.b` for `a`.
    Fields with types like those of the other operands (`others`) are preferred. Return an empty
    text if `written` is not a struct or list, or if `only` is set and several fields may fit."""
    if is_list(kind):
        item = f"{written}[0]"
        return part_of(item, kind.value_type, others, only=only) or item
    if not pa.types.is_struct(kind) or not kind.num_fields:
        return ""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    suited = [field for field in fields if any(_alike(field.type, other) for other in others)]
    if only and len(suited or fields) > 1:
        return ""
    field = (suited or fields)[0]
    part = f"{written}.{field.name}" if field.name.isidentifier() else f"{written}[{field.name!r}]"
    return part_of(part, field.type, others, only=only) or part


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or (_is_number(one) and _is_number(other))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def condition_on(part: str, kind: pa.DataType) -> str:
    """Return a condition on a number or a text, such as `x != 0`; empty for other types."""
    if _is_number(kind):
        return f"{part} != 0"
    return f"{part} != ''" if pa.types.is_string(kind) else ""


def _for_argument(name: str, value: ast.expr) -> tuple[ast.expr, str] | None:
    """Replace the argument of a function by its conversion to a text or a number."""
    written = ast.unparse(value)
    if name in _TEXT_FUNCTIONS or name == "len":
        return value, f"str({written})"
    return (value, f"float({written})") if name in _NUMBER_FUNCTIONS else None


def _for_pair(node: ast.expr, left: Part, right: Part) -> tuple[ast.expr, str] | None:
    """Replace an operation on two values of different types, or one of the values."""
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    for (part, kind), (other, other_kind) in ((left, right), (right, left)):
        value = other.value if isinstance(other, ast.Constant) else None
        if (pa.types.is_date(kind) or pa.types.is_timestamp(kind)) and type(value) is int:
            column = ast.unparse(part)
            written = translated(ast.unparse(node).replace(column, f"{column}.year", 1))
            return None if ".year" in written else (node, written)
        if pa.types.is_boolean(kind) and isinstance(value, str | int):
            return _for_boolean(node, ast.unparse(part), operator, str(value).lower())
        if _is_number(kind) and pa.types.is_string(other_kind):
            return _for_number_and_text(node, part, operator, other)
    return None


def _for_boolean(
    node: ast.expr, part: str, operator: object, word: str
) -> tuple[ast.expr, str] | None:
    if not isinstance(operator, ast.Eq) or word not in (*_TRUE, *_FALSE):
        return None
    return node, part if word in _TRUE else f"not {part}"


def _for_number_and_text(
    node: ast.expr, number: ast.expr, operator: object, text: ast.expr
) -> tuple[ast.expr, str] | None:
    """Replace an operation on a number and a text, or one of them."""
    value, written = getattr(text, "value", None), ast.unparse(number)
    if isinstance(text, ast.Constant) and _is_numeric(str(value)):
        return text, str(value)
    if value == "" and isinstance(operator, ast.Eq | ast.NotEq):
        return node, f"{written} is {'not ' * isinstance(operator, ast.NotEq)}None"
    if isinstance(operator, ast.Add):
        return None if isinstance(number, ast.Constant) else (number, f"str({written})")
    if isinstance(text, ast.Constant):
        return None
    if isinstance(number, ast.Constant) and not _is_exact(number.value):
        is_equal = isinstance(operator, ast.Eq | ast.NotEq)
        return (number, repr(str(number.value))) if is_equal else None
    return text, f"float({ast.unparse(text)})"


def _is_numeric(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None
