"""Computes expressions over columns with Arrow.

Values and operators behave as in Python, but an operation on null returns null, as in SQL. There
are exceptions. `None in [None]` and `True or None` are true. `False and None` is false. The result
of `a if None else b` is `b`. A division by zero and an item beyond the end of a list return null. A
column may have the null type in a block in which all its values are null.

Integers are computed as int64, and decimals as float64. If two columns are compared, and one has
floats, integers that float64 cannot hold fail. The same is true for `a if b else c`."""

from __future__ import annotations

import ast
import datetime as dt
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from batchinference.pipeline.arrow import empty_table, tensors_to_lists, with_column
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.expression.type_fixes import fix_for_types, part_of
from batchinference.pipeline.type_widening import (
    is_bytes,
    is_list,
    is_text,
    map_types,
    may_be_hexadecimal,
    unify_types,
)
from batchinference.spec.expression import (
    code_of,
    column_of,
    columns_of,
    columns_with_items,
    key_of,
    parse_expression,
)

_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.And: operator.and_,
    ast.Or: operator.or_,
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
"""The operator of each comparison after both sides are exchanged."""
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
_FUNCTIONS: dict[str, Callable[..., pc.Expression]] = {
    "strip": pc.utf8_trim_whitespace,
    "abs": pc.abs_checked,
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "contains": pc.match_substring,
    "matches": pc.match_substring_regex,
}
_NO_KERNEL = re.compile(r"Function '\w+' has no kernel matching input types \(.*\)")
MAX_TYPE = 200
"""Maximum number of characters of a type in a message."""


class UnsuitableTypes(BadInput):
    """Columns have types that a step or a query cannot use."""


class NoSuchPart(TypeError):
    """A value does not have the field or item that an expression reads."""


class InvalidTime(ValueError):
    """A text cannot be converted to the type of the date or time that it is compared with."""


@dataclass(frozen=True)
class Operand:
    """A part of an expression, and its type. The type is null if the part is null in every row."""

    expression: pc.Expression
    kind: pa.DataType
    literal: Any = None
    """The value of a constant; None if the operand is not a constant."""
    is_uuid: bool = False
    """Whether the values are UUIDs, which are computed as texts."""

    @property
    def is_null(self) -> bool:
        """Whether the part is null in every row."""
        return bool(pa.types.is_null(self.kind))

    def cast(self, kind: pa.DataType, *, exactly: bool = False) -> Operand:
        """Return the operand cast to another type. Numbers may be rounded. With `exactly`,
        computing the result raises ArrowInvalid for a value that does not fit the type."""
        # decimals as texts first, because Arrow casts the decimal 99.99 to another float
        is_wrong = pa.types.is_decimal(self.kind) and pa.types.is_floating(kind)
        value = self.expression.cast(pa.string()) if is_wrong else self.expression
        return Operand(value.cast(kind, safe=exactly), kind)

    def as_condition(self) -> Operand:
        """Return the operand with the boolean type if it has the null type, else unchanged."""
        return constant(pa.scalar(None, pa.bool_())) if self.is_null else self


def constant(value: Any) -> Operand:
    """Return the operand for a constant of an expression."""
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    return Operand(pc.scalar(scalar), scalar.type, value)


NULL = constant(None)


def check_text(step: str, column: str, known: pa.Table, reader: str) -> None:
    """Raise UnsuitableTypes if a column is known to hold other values than texts. `known` has the
    columns whose type is known. `reader` is the name of what needs texts, for the message."""
    kind = known.schema.field(column).type if column in known.column_names else pa.null()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(kind) or pa.types.is_null(kind):
        return
    part = part_of(code_of(column), kind, [pa.string()]) or f"str({code_of(column)})"
    raise UnsuitableTypes(
        f"step '{step}': column '{column}' holds {_shown(kind)}, and {reader} needs texts. Add a "
        f"column with a step addColumns, such as {{value: {part}}}, and use it here"
    )


def compute(expression: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    """Return the values of an expression for the rows of a table."""
    return pads.dataset(table).to_table(columns={"result": expression}).column("result")


class ColumnExpression:
    """An expression over columns. `label` names it in messages."""

    def __init__(self, label: str, text: str) -> None:
        self._label, self._text = label, text
        self._tree = parse_expression(text)
        self.columns = sorted(columns_of(self._tree))
        self._as_lists = sorted(columns_with_items(self._tree))
        self._translated: dict[pa.Schema, Operand | UnsuitableTypes] = {}

    def is_known(self, table: pa.Table) -> bool:
        """Return whether a table has all columns of the expression."""
        return set(self.columns) <= set(table.column_names)

    def __call__(self, batch: pa.Table) -> pa.ChunkedArray:
        """Return the value of each row. The type is null if the expression is null for these column
        types. Raises UnsuitableTypes if the expression does not suit the types of the columns.
        Raises ArrowInvalid if it fails for a row, for example because a sum overflows."""
        narrow = batch.select(self.columns)
        lists = tensors_to_lists(batch.select(self._as_lists))
        for name in self._as_lists:
            narrow = with_column(narrow, name, lists.column(name))
        return compute(self.arrow(narrow.schema), narrow)

    def arrow(self, schema: pa.Schema) -> pc.Expression:
        """Return the Arrow expression for columns with these types. Raises UnsuitableTypes."""
        schema = schema.remove_metadata()
        if schema not in self._translated:
            try:
                self._translated[schema] = self._translate(schema)
            except UnsuitableTypes as error:
                self._translated[schema] = error
        translated = self._translated[schema]
        if isinstance(translated, UnsuitableTypes):
            raise UnsuitableTypes(translated.message)
        return translated.expression

    def _translate(self, schema: pa.Schema) -> Operand:
        null_row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        translation = _Translation(schema)

        def checked(part: ast.expr) -> Operand:
            operand = translation.of(part)
            compute(operand.expression, null_row)
            return operand

        try:
            return checked(self._tree)
        except InvalidTime as error:
            fix = "Write it as '2026-01-31', or '2026-01-31 12:00:00' with a time"
            raise UnsuitableTypes(f"{self._label}: {error}: {self._text}. {fix}") from None
        except NoSuchPart as error:
            fix, message = fix_for_types(self._text, lambda x: checked(x).kind), str(error)
            message = f"{message.partition('. ')[0]}. {fix}" if fix.startswith("Write") else message
            raise UnsuitableTypes(f"{self._label}: {self._text}: {message}") from None
        except (ValueError, TypeError, NotImplementedError) as error:  # including Arrow's errors
            reason = _NO_KERNEL.sub("there is no such operation for these types", str(error))
            message = f"{self._label} cannot be computed: {self._text}: {reason}".rstrip(".")
            if "regular expression" in reason:
                raise UnsuitableTypes(f"{message}. Correct it") from None
            types = ", ".join(f"{field.name} is {_shown(field.type)}" for field in schema)
            fix = fix_for_types(self._text, lambda part: checked(part).kind)
            raise UnsuitableTypes(f"{message}. Here {types}. {fix}") from None


class _Translation:
    """Translates syntax trees of expressions to Arrow, for columns with the types of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._empty = empty_table(schema)

    def of(self, node: ast.expr) -> Operand:
        match node:
            case ast.Constant(value=value):
                return constant(value)
            case ast.Name(id=name):
                return self._column(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(op, self.of(left), self.of(right))
            case ast.BoolOp(op=op, values=values):
                return self._fold(op, [self.of(value) for value in values])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(*map(self.of, (test, body, orelse)))
        return self._operand(node)

    def _operand(self, node: ast.expr) -> Operand:
        match node:
            case ast.Attribute(value=value) | ast.Subscript(value=value):
                return self._part(self.of(value), key_of(node))
            case ast.Call():
                return self._call(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.Compare():
                return self._comparisons(node)
        raise ValueError(f"'{ast.unparse(node)}' is not part of the expression language")

    def _apply(self, function: Callable[..., pc.Expression], *operands: Operand) -> Operand:
        """Return the result of an Arrow function; null if an operand is null in every row."""
        if any(operand.is_null for operand in operands):
            return NULL
        expression = function(*(operand.expression for operand in operands))
        return Operand(expression, compute(expression, self._empty).type)

    def _fold(self, op: ast.boolop, parts: list[Operand]) -> Operand:
        apply = partial(self._apply, _OPERATORS[type(op)])
        return reduce(apply, (part.as_condition() for part in parts))

    def _unary(self, node: ast.UnaryOp) -> Operand:
        operand = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return self._apply(operator.invert, operand.as_condition())
        # not pc.negate, which returns the smallest integer unchanged
        return self._operation(ast.Sub(), constant(0), operand)

    def _comparisons(self, node: ast.Compare) -> Operand:
        rights = node.comparators
        pairs = zip([node.left, *rights[:-1]], node.ops, rights, strict=True)
        return self._fold(ast.And(), [self._comparison(*pair) for pair in pairs])

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Operand:
        value = self.of(left)
        match op:
            case ast.Is() | ast.IsNot():
                missing = constant(True) if value.is_null else self._apply(pc.is_null, value)
                return missing if isinstance(op, ast.Is) else self._apply(operator.invert, missing)
            case ast.In() | ast.NotIn():
                elements = right.elts if isinstance(right, ast.List | ast.Tuple) else []
                values = [e.value for e in elements if isinstance(e, ast.Constant)]
                inside = self._is_in(value, values)
                return inside if isinstance(op, ast.In) else self._apply(operator.invert, inside)
        return self._operation(op, value, self.of(right))

    def _operation(self, op: ast.cmpop | ast.operator, left: Operand, right: Operand) -> Operand:
        if left.is_null or right.is_null:
            return NULL
        if isinstance(op, ast.Div | ast.Mod):
            return self._division(op, left, right)
        if isinstance(op, ast.Add) and all(is_text(side.kind) for side in (left, right)):
            first, second = _with_common_type(left, right)
            between = pc.scalar(pa.scalar("", first.kind))
            join = pc.binary_join_element_wise
            return self._apply(lambda *both: join(*both, between), first, second)
        if isinstance(op, ast.cmpop):
            left, op, right = _with_constant_as_float(left, op, right)
            return self._apply(_OPERATORS[type(op)], *_comparable(left, right))
        return self._apply(_OPERATORS[type(op)], *_with_compatible_types(left, right))

    def _is_in(self, value: Operand, values: list[Any]) -> Operand:
        """Return whether a list contains a value. For null: true if None is listed, else null."""
        if value.is_null:
            return constant(True) if None in values else NULL
        if pa.types.is_floating(value.kind):
            values = _without_rounded(values, value.kind.to_pandas_dtype())
        value = _without_decimal(value)
        inside = value.expression.isin(_list_values(values, value.kind))
        if None not in values:
            null = pc.scalar(pa.scalar(None, pa.bool_()))
            inside = pc.if_else(value.expression.is_valid(), inside, null)
        return Operand(inside, pa.bool_())

    def _division(self, op: ast.operator, left: Operand, right: Operand) -> Operand:
        """Return a quotient or remainder; null for a division by zero."""
        left, right = _without_decimal(left), _without_decimal(right)
        for kind in (left.kind, right.kind):
            if not any(is_number(kind) for is_number in _NUMBERS):
                raise TypeError(f"{kind} cannot be divided")
        zero, null = (pc.scalar(pa.scalar(value, right.kind)) for value in (0, None))
        divisor = Operand(pc.if_else(right.expression == zero, null, right.expression), right.kind)
        integers = pa.types.is_integer(left.kind) and pa.types.is_integer(right.kind)
        kind = pa.int64() if integers and isinstance(op, ast.Mod) else pa.float64()
        operands = left.cast(kind), divisor.cast(kind)
        if isinstance(op, ast.Div):
            return self._apply(operator.truediv, *operands)
        name = _registered_remainder(kind)
        return self._apply(lambda *sides: pc.Expression._call(name, list(sides)), *operands)

    def _choice(self, test: Operand, body: Operand, orelse: Operand) -> Operand:
        condition = pc.coalesce(test.as_condition().expression, pc.scalar(False))
        body = constant(pa.scalar(None, orelse.kind)) if body.is_null else body
        orelse = constant(pa.scalar(None, body.kind)) if orelse.is_null else orelse
        if body.kind != orelse.kind:  # a value that is not chosen need not fit the type
            body, orelse = _constant_as(body, orelse.kind), _constant_as(orelse, body.kind)
            body = _if(condition, body, constant(pa.scalar(None, body.kind)))
            orelse = _if(condition, constant(pa.scalar(None, orelse.kind)), orelse)
            body, orelse = _with_common_type(body, orelse)
        return self._apply(lambda *both: pc.if_else(condition, *both), body, orelse)

    def _column(self, name: str) -> Operand:
        return _computable(Operand(pc.field(name), self._schema.field(name).type))

    def _part(self, value: Operand, key: str | int) -> Operand:
        """Return a field of a struct, a value of a map, or an item of a list. A missing key or item
        is null. Raises NoSuchPart if the type has no such parts."""
        if value.is_null:
            return NULL
        part = _item_of(value, key) if isinstance(key, int) else _field_of(value, key)
        return _computable(part)

    def _call(self, node: ast.Call) -> Operand:
        if (column := column_of(node)) is not None:
            return self._column(column)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        value = self.of(node.args[0])
        constants: list[Any] = [arg.value for arg in node.args[1:] if isinstance(arg, ast.Constant)]
        if name == "len":
            return self._length(value)
        if name == "round":
            return self._rounded(value, *constants)
        if name in ("int", "float") and value.is_uuid:
            raise TypeError("a UUID is not a number")
        if name in _CASTS:
            return value if value.is_null else _CASTS[name](value)
        value = _without_decimal(value)
        return self._apply(lambda part: _FUNCTIONS[name](part, *constants), value)

    def _rounded(self, value: Operand, digits: int | None = None) -> Operand:
        """Return the nearest number with these decimal places. Arrow multiplies by a power of ten
        and rounds half to even. As in Python, the result without `digits` is an integer."""
        if value.is_null or pa.types.is_integer(value.kind):
            return value
        nearest = self._apply(
            lambda number: pc.round(number, ndigits=digits or 0, round_mode="half_to_even"),
            _wide_decimal(value) if digits is None else _without_decimal(value),
        )
        return nearest if digits is not None else _CASTS["int"](nearest)

    def _length(self, value: Operand) -> Operand:
        """Return the number of characters (text), bytes (binary) or elements (list or map)."""
        kind, length = value.kind, pc.utf8_length
        if pa.types.is_map(kind):
            pairs = pa.struct([kind.key_field, kind.item_field])
            value, length = value.cast(pa.list_(pairs)), pc.list_value_length
        if is_list(kind):
            length = pc.list_value_length
        if is_bytes(kind):
            length = pc.binary_length
        result = self._apply(length, value)
        return result if result.is_null else result.cast(pa.int64())


def _if(condition: pc.Expression, chosen: Operand, other: Operand) -> Operand:
    """Return `chosen` in rows for which the condition is true, and `other` in all other rows. Both
    operands have the same type."""
    return Operand(pc.if_else(condition, chosen.expression, other.expression), chosen.kind)


def _computable(operand: Operand) -> Operand:
    """Return a column or part in a type with which Arrow computes: integers as int64, for example,
    and UUIDs as texts. Computing the result fails for a uint64 that int64 cannot hold."""
    kind = operand.kind
    if kind == pa.uuid():
        return replace(_by_python(str, operand), is_uuid=True)
    if pa.types.is_integer(kind):
        return operand.cast(pa.int64(), exactly=True)
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = {pa.float16(): pa.float32(), pa.json_(): pa.string()}.get(values, values)
    return operand if plain == kind else operand.cast(plain)


def _field_of(value: Operand, name: str) -> Operand:
    kind = value.kind
    if pa.types.is_map(kind):
        item = pc.map_lookup(_stored(value).expression, name, "first")
        return _restored(item, kind.item_type)
    if not pa.types.is_struct(kind):
        fix = f". Read an item first, such as [0].{name}" if is_list(kind) else _decode_fix(kind)
        raise NoSuchPart(f"there is no field '{name}', because the value is {_shown(kind)}{fix}")
    index = kind.get_field_index(name)
    if index < 0:
        from batchinference.spec.problems import did_you_mean  # only for errors

        fields = ", ".join(kind.names)[:MAX_TYPE] + did_you_mean(name, kind.names)
        raise NoSuchPart(f"there is no field '{name}'. The fields are {fields}")
    return Operand(pc.struct_field(value.expression, [index]), kind.field(index).type)


def _decode_fix(kind: pa.DataType) -> str:
    return ". Decode a text of JSON with a step decode" if is_text(kind) else ""


def _shown(kind: pa.DataType) -> str:
    return str(kind)[:MAX_TYPE]


def _item_of(value: Operand, index: int) -> Operand:
    if not is_list(value.kind):
        shown = _shown(value.kind)
        problem = f"there is no item {index}, because the value is {shown}, not a list"
        hint = ". For its beginning, use startswith" if is_text(value.kind) else ""
        raise NoSuchPart(f"{problem}{hint}{_decode_fix(value.kind)}")
    lists = _stored(value)
    # replace short lists by null, because list_element fails for them, and list_slice may crash
    null = pc.scalar(pa.scalar(None, lists.kind))
    is_long_enough = pc.list_value_length(value.expression) > index
    long_lists = pc.if_else(is_long_enough, lists.expression, null)
    return _restored(pc.list_element(long_lists, index), value.kind.value_type)


def _stored(value: Operand) -> Operand:
    """Return lists or maps with the stored values of UUIDs (bytes) and of JSON (texts), at any
    depth. Arrow has no operations for lists and maps of UUIDs or JSON."""
    kind = map_types(value.kind, lambda leaf: getattr(leaf, "storage_type", leaf))
    return value if kind == value.kind else value.cast(kind)


def _restored(item: pc.Expression, kind: pa.DataType) -> Operand:
    """Return an item of `_stored` in its own type."""
    stored = map_types(kind, lambda leaf: getattr(leaf, "storage_type", leaf))
    return Operand(item if stored == kind else item.cast(kind), kind)


def _to_integer(value: Operand) -> Operand:
    """Return a number without its fraction, or a text with an integer, as an integer."""
    if is_text(value.kind):
        return _without_hexadecimal(value).cast(pa.int64(), exactly=True)
    if pa.types.is_temporal(value.kind):  # the number would depend on the unit of the column
        raise TypeError(f"{value.kind} is not a number")
    value = _wide_decimal(value)
    if pa.types.is_floating(value.kind) or pa.types.is_decimal(value.kind):
        value = Operand(pc.trunc(value.expression), value.kind)
    return value.cast(pa.int64(), exactly=True)


def _without_hexadecimal(value: Operand) -> Operand:
    """Return texts, with a remark added to each text such as 0xFF. A cast to an integer then fails.
    Without the remark, Arrow would cast the text to 255."""
    text, kind = value.expression, value.kind
    remark, empty = (pc.scalar(pa.scalar(part, kind)) for part in (" in hexadecimal digits", ""))
    marked = pc.binary_join_element_wise(text, remark, empty)
    return Operand(pc.if_else(may_be_hexadecimal(text), marked, text), kind)


def _to_text(value: Operand) -> Operand:
    """Return a value as text, formatted as in Python: True, 1.0, 1e-05, 2026-01-31 12:00:00."""
    kind, text = value.kind, value.expression.cast(pa.string())
    if pa.types.is_boolean(kind):
        text = pc.if_else(value.expression, pc.scalar("True"), pc.scalar("False"))
    elif pa.types.is_floating(kind):
        # cast the text, because a float32 has more digits as float64: 0.1 becomes 0.10000000149
        return _by_python(str, Operand(text, pa.string()).cast(pa.float64()))
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or kind in _PYTHON_TIMES:
        return _by_python(str, value)
    return Operand(text, pa.string())


def _changed_text(change: Callable[[str], str], value: Operand) -> Operand:
    if not is_text(value.kind):
        raise TypeError("there is no such operation for these types")
    return _by_python(change, value)


def _by_python(function: Callable[[Any], str], value: Operand) -> Operand:
    """Return the texts that a Python function makes of the values that are not null."""
    kind = value.kind if is_text(value.kind) else pa.string()
    name = _registered(function, value.kind, kind)
    return Operand(pc.Expression._call(name, [value.expression]), kind)


_PYTHON_TIMES = (pa.time32("s"), pa.time32("ms"), pa.time64("us"))
"""The times of day that Python can hold."""


@cache
def _registered(function: Callable[[Any], str], kind: pa.DataType, text: pa.DataType) -> str:
    """Register an Arrow function that makes a text of each value of a type. Return its name."""

    def texts(_: object, values: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
        if isinstance(values, pa.Scalar):
            return pa.scalar(function(values.as_py()) if values.is_valid else None, text)
        results = (None if value is None else function(value) for value in values.to_pylist())
        return pa.array(results, text)

    name = f"batchinference_{function.__name__}_of_{kind}"
    doc = {"summary": "texts of values", "description": f"as Python's {function.__name__}"}
    pc.register_scalar_function(texts, name, doc, {"values": kind}, text)
    return name


_CASTS: dict[str, Callable[[Operand], Operand]] = {
    "int": _to_integer,
    "float": lambda value: value.cast(pa.float64()),
    "str": _to_text,
    "lower": partial(_changed_text, str.lower),  # Arrow maps letter to letter, and keeps ß
    "upper": partial(_changed_text, str.upper),
}


def _with_common_type(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands in a common type. Raises TypeError if there is none. Computing the
    results raises ArrowInvalid if the common type cannot hold a value."""
    kind = unify_types(left.kind, right.kind)
    if kind is None:
        raise TypeError(f"{left.kind} and {right.kind} have no common type")
    return left.cast(kind, exactly=True), right.cast(kind, exactly=True)


@cache
def _registered_remainder(kind: pa.DataType) -> str:
    """Register an Arrow function for exact remainders, as Python's %, and return its name."""

    def remainders(context: pc.UdfContext, *sides: pa.Array | pa.Scalar) -> pa.Array:
        size = context.batch_length
        columns = [pa.repeat(side, size) if isinstance(side, pa.Scalar) else side for side in sides]
        numbers = [pc.fill_null(side, 1).to_numpy(zero_copy_only=False) for side in columns]
        with np.errstate(invalid="ignore"):  # the remainder of infinity is NaN
            result = pa.array(np.mod(*numbers), kind)
        return pc.if_else(pc.and_(*map(pc.is_valid, columns)), result, None)

    name = f"batchinference_remainder_of_{kind}"
    doc = {"summary": "remainders of numbers", "description": "as Python's %"}
    pc.register_scalar_function(remainders, name, doc, {"dividend": kind, "divisor": kind}, kind)
    return name


def _with_compatible_types(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands in types with which Arrow computes. Raises InvalidTime if a text is
    compared with a date or time, and cannot be converted."""
    left, right = _without_decimal(left), _without_decimal(right)
    return _convert_for(left, right.kind), _convert_for(right, left.kind)


def _convert_for(operand: Operand, other: pa.DataType) -> Operand:
    if pa.types.is_integer(operand.kind) and pa.types.is_floating(other):
        return operand.cast(pa.float64())
    return _constant_as(operand, other)


def _with_constant_as_float(
    left: Operand, op: ast.cmpop, right: Operand
) -> tuple[Operand, ast.cmpop, Operand]:
    """Return a comparison of floats with an integer constant that float64 would round as an equal
    comparison with a float. Return other comparisons unchanged.

    x == 2**53 + 1  ->  x == NaN      x != 2**53 + 1  ->  x != NaN
    x <  2**53 + 1  ->  x <= 2**53    x >= 2**53 + 1  ->  x >= 2**53 + 2"""
    if type(left.literal) is int:
        left, op, right = right, _MIRRORED[type(op)](), left
    exact = right.literal
    if type(exact) is not int or not pa.types.is_floating(left.kind) or float(exact) == exact:
        return left, op, right
    nearest = float(exact)
    if isinstance(op, ast.Eq | ast.NotEq):
        return left, op, constant(pa.scalar(math.nan))
    if isinstance(op, ast.Lt | ast.LtE):
        below = nearest if nearest < exact else math.nextafter(nearest, -math.inf)
        return left, ast.LtE(), constant(pa.scalar(below))
    above = nearest if nearest > exact else math.nextafter(nearest, math.inf)
    return left, ast.GtE(), constant(pa.scalar(above))


def _comparable(left: Operand, right: Operand) -> tuple[Operand, Operand]:
    """Return both operands in types that Arrow compares exactly. Raises InvalidTime if a text is
    compared with a date or time, and cannot be converted."""
    if pa.types.is_decimal(left.kind) and pa.types.is_decimal(right.kind):
        return left, right
    left, right = _without_decimal(left), _without_decimal(right)
    left, right = _constant_for(left, right.kind), _constant_for(right, left.kind)
    if left.literal is None and right.literal is None:
        left, right = _exact_for(left, right.kind), _exact_for(right, left.kind)
    return _with_compatible_types(left, right)


def _constant_for(operand: Operand, other: pa.DataType) -> Operand:
    """Return a constant in the type of the column that it is compared with. For integers, 2.0
    becomes 2. For float32, 0.1 becomes a float32. Return other operands unchanged."""
    value = operand.literal
    if isinstance(value, float) and pa.types.is_integer(other) and _fits_integer(value):
        return constant(int(value))
    if isinstance(value, float) and pa.types.is_float32(other):
        return constant(pa.scalar(value, other))
    return operand


def _fits_integer(value: float) -> bool:
    """Return whether a number is an integer that int64 can hold."""
    return value.is_integer() and -(2.0**63) <= value < 2.0**63


def _exact_for(operand: Operand, other: pa.DataType) -> Operand:
    """Return integers as float64 for a comparison with floats, and other operands unchanged.
    Computing the result raises ArrowInvalid for an integer that float64 cannot hold."""
    if pa.types.is_integer(operand.kind) and pa.types.is_floating(other):
        return operand.cast(pa.float64(), exactly=True)
    return operand


def _constant_as(operand: Operand, other: pa.DataType) -> Operand:
    """Return a constant in a type that Arrow can combine with `other`. A text becomes a time, and a
    number becomes a decimal. Return other operands unchanged. Raises InvalidTime."""
    value = operand.literal
    if isinstance(value, str) and _is_temporal(other):
        return constant(_parse_time(value, other))
    if type(value) in (int, float) and pa.types.is_decimal(other):
        return constant(pa.scalar(Decimal(repr(value))))
    return operand


def _wide_decimal(operand: Operand) -> Operand:
    """Return decimals with one more digit, as decimal256. Arrow cannot round 9.9 to 10 in a decimal
    of 2 digits, and cannot round decimals narrower than decimal128."""
    kind = operand.kind
    is_wider = pa.types.is_decimal(kind) and kind.precision < 76
    return operand.cast(pa.decimal256(kind.precision + 1, kind.scale)) if is_wider else operand


def _without_decimal(operand: Operand) -> Operand:
    """Return decimals as float64, because Arrow's operations on decimals may overflow."""
    return operand.cast(pa.float64()) if pa.types.is_decimal(operand.kind) else operand


def _list_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the constants of an `in` list in a type that Arrow can compare with `kind`. Raises
    TypeError if there is none. Raises InvalidTime if `kind` is a date or time and a text is not."""
    if pa.types.is_null(pa.array(values).type):  # Arrow does not compare text with the null type
        return pa.array(values, kind)
    if pa.types.is_integer(kind):
        floats = (value for value in values if isinstance(value, float))
        unequal = [value for value in floats if not _fits_integer(value)]  # equal to no integer
        values = [int(x) if isinstance(x, float) else x for x in values if x not in unequal]
    is_number = any(is_kind(kind) for is_kind in _NUMBERS)
    if is_number and any(isinstance(value, str) for value in values):
        raise TypeError(f"a list of texts cannot be compared with {kind}")
    if _is_temporal(kind):
        if not all(isinstance(value, str | None) for value in values):
            raise TypeError(f"a list of numbers cannot be compared with {kind}")
        return pa.array([_parse_time(v, kind) if isinstance(v, str) else v for v in values], kind)
    return pa.array(values)


def _without_rounded(values: list[Any], float_type: Callable[[Any], Any]) -> list[Any]:
    """Return constants without the integers that `float_type` cannot hold. Others become floats."""
    integers = {x: float(float_type(x)) for x in values if type(x) is int}
    return [integers.get(x, x) for x in values if integers.get(x, x) == x]


def _parse_time(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the date or time of a text in ISO 8601. A text without a time zone gets the time zone
    of the type. Raises InvalidTime if the text is invalid."""
    try:
        if pa.types.is_time(kind):
            return pa.scalar(dt.time.fromisoformat(text), kind)
        if pa.types.is_timestamp(kind) and kind.tz:
            return _in_zone(text, kind)
        return pa.scalar(text).cast(kind)
    except ValueError:  # including Arrow's errors
        raise InvalidTime(f"'{text}' is not a {kind}") from None


def _in_zone(text: str, kind: pa.TimestampType) -> pa.Scalar:
    """Return the time of a text. A text without a time zone gets the time zone of the type."""
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:  # the text has no time zone
        return pc.assume_timezone(pa.scalar(text).cast(pa.timestamp(kind.unit)), kind.tz)


def _is_temporal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind))
