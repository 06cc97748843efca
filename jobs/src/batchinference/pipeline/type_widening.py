"""Widens Arrow types, so that one column type can hold the values of several schemas.

An integer and a float become float64. An integer and a decimal become a decimal with enough digits
for any integer. Timestamps of two time zones become UTC. Ray widens tensors, and Arrow widens other
types. The order of the types only determines the order of struct fields. Some wider types, such as
that for int64 and uint64, cannot hold all values. `exact_cast` refuses values that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types as kinds

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.ray_on_first_use import ray_data_compat
from batchinference.spec.column_types import ColumnType
from batchinference.spec.problems import MAX_SHOWN
from batchinference.text import cut

INTEGER_DIGITS = 20
"""Decimal digits of the longest integer, a uint64."""
_DECIMALS = ((pa.decimal128, 38), (pa.decimal256, 76))
"""Decimal types, with their maximum number of digits."""
_MAX_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""The maximum number of digits of Arrow's decimals, by their width in bits."""
FIXED_SHAPE = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
"""Ray's tensor types with one shape in all rows. Ray ignores the offsets of their values."""
TENSORS = frozenset(
    {*FIXED_SHAPE, "ray.data.arrow_variable_shaped_tensor", "arrow.fixed_shape_tensor"}
)
"""The names of tensor types. Arrow knows Ray's types only after Ray Data is imported."""
EXTENSION_NAME = b"ARROW:extension:name"


class TypeMismatch(TypeError):
    """A column has two different types, or a value does not fit the type of its column."""

    def __init__(
        self, column: str, one: pa.DataType, other: pa.DataType, error: object = ""
    ) -> None:
        super().__init__(f"column '{column}' is {one} and {other}{error and f': {error}'}")
        self.column, self.one, self.other, self.error = column, one, other, error


def unify_types(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both types; None if there is none."""
    if one == other or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    if is_tensor(one) and is_tensor(other):
        if len({len(k.shape) if hasattr(k, "shape") else k.ndim for k in (one, other)}) > 1:
            return None  # Ray would add axes to one of them
        return _by_schema(ray_data_compat().unify_schemas, one, other, promote_types=True)
    if is_tensor(one) or is_tensor(other):
        return None
    wider = _wider(plain_type(one), plain_type(other))
    try:
        for kind in (one, other) if wider is not None else ():
            pa.nulls(0, kind).cast(wider)
    except pa.ArrowException:
        return None
    return wider


def is_tensor(kind: pa.DataType) -> bool:
    """Return whether values of this type are tensors."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name in TENSORS


def register_tensors(fields: Iterable[pa.Field]) -> bool:
    """Return whether fields, at any depth, name a tensor type of Ray that Arrow does not know. Then
    Ray's tensor types are registered, and the caller must open the data again."""
    unknown = any(
        (field.metadata or {}).get(EXTENSION_NAME, b"").decode() in TENSORS
        or register_tensors(map(field.type.field, range(field.type.num_fields)))
        for field in fields
    )
    if unknown:
        ray_data_compat()
    return unknown


def unify_field(fields: Sequence[pa.Field]) -> pa.Field | None:
    """Return the first field, with a type for the values of all fields; None if there is none."""
    wider: pa.DataType | None = pa.null()
    for field in fields:
        if (wider := unify_types(wider, field.type)) is None:
            return None
    return fields[0].with_type(wider).with_nullable(any(field.nullable for field in fields))


def unify_schemas(schemas: Iterable[pa.Schema], *, widen: bool = False) -> pa.Schema:
    """Return a schema with the columns of all schemas. Raises TypeMismatch if a column has two
    types, and neither is null; with `widen`, only if no type holds the values of both."""
    columns: dict[str, pa.Field] = {}
    for field in (field for schema in schemas for field in schema):
        known = columns.get(field.name, field)
        unified = unify_field([known, field])
        fits = widen or pa.null() in (known.type, field.type) or known.type == field.type
        if unified is None or not fits:
            raise TypeMismatch(field.name, known.type, field.type)
        columns[field.name] = unified
    return pa.schema(list(columns.values()))


def with_equal_types(tables: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Return tables in which columns of one name have one type; `tables` itself if all are alike.
    Null columns next to tensors are left out. Raises TypeMismatch if no type holds all values."""
    if all(table.schema == tables[0].schema for table in tables):
        return tables
    schema = unify_schemas((table.schema for table in tables), widen=True)
    while True:
        try:
            return [_with_types_of(schema, table) for table in tables]
        except TypeMismatch as error:
            field, index = schema.field(error.column), schema.get_field_index(error.column)
            signed = map_types(field.type, lambda kind: pa.int64() if kind == pa.uint64() else kind)
            if signed == field.type:
                raise
            schema = schema.set(index, field.with_type(signed))


def _with_types_of(schema: pa.Schema, table: pa.Table) -> pa.Table:
    for field in table.schema:
        kind, index = schema.field(field.name).type, table.schema.get_field_index(field.name)
        if is_tensor(kind):
            table = table.remove_column(index) if kinds.is_null(field.type) else table
        elif field.type != kind:
            table = table.set_column(index, field.name, _cast(table, field.with_type(kind)))
    return table


def cast_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns and types of `schema`, followed by its other columns.
    Missing columns become null. Raises TypeMismatch if values do not fit the types, and for casts
    between bytes and texts, or between booleans and numbers."""
    columns = {field.name: _cast(table, field) for field in schema}
    others = [field for field in table.schema if field.name not in columns]
    arrays = [*columns.values(), *(table.column(field.name) for field in others)]
    return pa.table(arrays, schema=pa.schema([*schema, *others]))


def _cast(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names or kinds.is_null(table.field(field.name).type):
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(field.name)
    try:
        _check_kinds(column.type, field.type)
        if kinds.is_dictionary(field.type):  # Arrow would cast only texts
            values = exact_cast(column, field.type.value_type)
            return values.dictionary_encode().cast(field.type)
        return exact_cast(column, field.type)
    except pa.ArrowException as error:
        raise TypeMismatch(field.name, column.type, field.type, error) from None


PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without a dictionary, run-end or view encoding."""
    return without_views(kind.value_type if kinds.is_dictionary(kind) else kind)


def without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type without views and run-end encodings, at any depth. Arrow cannot select rows
    of arrays with these encodings."""

    def plain(leaf: pa.DataType) -> pa.DataType:
        if kinds.is_list_view(leaf) or kinds.is_large_list_view(leaf):
            make = pa.list_ if kinds.is_list_view(leaf) else pa.large_list
            return make(leaf.value_field.with_type(without_views(leaf.value_type)))
        return leaf.value_type if kinds.is_run_end_encoded(leaf) else PLAIN_TYPES.get(leaf, leaf)

    return map_types(kind, plain)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if is_number(one) and is_number(other):
        return _wider_number(one, other)
    if kinds.is_timestamp(one) and kinds.is_timestamp(other):
        return _wider_timestamp(one, other)
    if kinds.is_struct(one) and kinds.is_struct(other):
        return _wider_struct(one, other)
    if is_list(one) and is_list(other):
        return _wider_list(one, other)
    if kinds.is_map(one) and kinds.is_map(other):
        key = unify_types(one.key_type, other.key_type)
        item = unify_field([one.item_field, other.item_field])
        return None if key is None or item is None else pa.map_(key, item)
    if is_text(one) != is_text(other):
        return None  # Arrow would make bytes of texts
    return _by_schema(pa.unify_schemas, one, other, promote_options="permissive")


def _by_schema(
    unify: Callable[..., pa.Schema], one: pa.DataType, other: pa.DataType, **options: object
) -> pa.DataType | None:
    schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
    with suppress(pa.ArrowInvalid, pa.ArrowTypeError):
        return unify(schemas, **options).field(0).type
    return None


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of this type are integers, floats or decimals."""
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    both = (one, other)
    if all(map(kinds.is_floating, both)):
        return max(both, key=lambda kind: kind.bit_width)
    if any(map(kinds.is_floating, both)):
        return pa.float64()
    if any(map(kinds.is_decimal, both)):
        return _wider_decimal(one, other)
    if pa.uint64() in both:
        return pa.uint64()  # Arrow would choose int64 for signed integers
    return _by_schema(pa.unify_schemas, one, other, promote_options="permissive")


def _wider_timestamp(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type with the finer unit, in UTC if zones differ; None if only one has a zone."""
    if (one.tz is None) != (other.tz is None):
        return None
    unit = max(one.unit, other.unit, key=("s", "ms", "us", "ns").index)
    return pa.timestamp(unit, one.tz if one.tz == other.tz else "UTC")


def _wider_decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    both = [(getattr(k, "precision", INTEGER_DIGITS), getattr(k, "scale", 0)) for k in (one, other)]
    scale = max(scale for _, scale in both)
    precision = scale + max(digits - scale for digits, scale in both)
    fitting = (make(precision, scale) for make, limit in _DECIMALS if precision <= limit)
    return next(fitting, None)


def shape_of(kind: pa.DataType) -> ColumnType:
    """Return the nesting of structs and lists in a type, in the notation of declared types."""
    if pa.types.is_struct(kind):
        return {field.name: shape_of(field.type) for field in kind}
    return [shape_of(kind.value_type)] if is_list(kind) else str(kind)


def may_be_hexadecimal(texts: Any) -> Any:
    """Return a mask of the texts, in an array or expression, that may be integers such as 0xFF.
    Arrow would cast 0xFF to -1 as int8."""
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    return pc.match_substring(texts, "0x", ignore_case=True)


def check_fraction_digits(array: pa.Array, kind: pa.DataType) -> None:
    """Raise ArrowInvalid if a text, even a nested one, has too many decimal places for the decimal
    `kind`. Arrow would read beyond its table of powers of ten, and return another number or end the
    process."""
    both = (array.type, kind)
    if all(map(kinds.is_struct, both)):
        for name, values in zip(array.type.names, array.flatten(), strict=True):
            if (index := kind.get_field_index(name)) >= 0:
                check_fraction_digits(values, kind.field(index).type)
    elif all(map(is_list, both)):
        check_fraction_digits(array.flatten(), kind.value_type)
    elif is_text(array.type) and kinds.is_decimal(kind):
        _check_digits_of_texts(array, kind)


def _check_digits_of_texts(texts: pa.Array, kind: pa.DataType) -> None:
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    limit = kind.scale + _MAX_DIGITS[kind.bit_width]
    has_exponent = pc.match_substring(texts, "e-", ignore_case=True)
    doubtful = pc.or_(has_exponent, pc.greater(pc.binary_length(texts), limit))
    for text in texts.filter(doubtful).to_pylist():
        with suppress(InvalidOperation):  # Arrow refuses texts that are not numbers
            exponent = Decimal(text).as_tuple().exponent
            if isinstance(exponent, int) and -exponent > limit:
                raise pa.ArrowInvalid(f"{cut(text, MAX_SHOWN)} has too many decimal places")


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are texts."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of this type are bytes, of any length or of a fixed length."""
    is_binary = kinds.is_binary(kind) or kinds.is_large_binary(kind)
    return bool(is_binary or kinds.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of this type are lists, of any length or of a fixed length."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _wider_list(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    value = unify_field([one.value_field, other.value_field])
    if value is None:
        return None
    if kinds.is_large_list(one) or kinds.is_large_list(other):
        return pa.large_list(value)
    sizes = {getattr(kind, "list_size", -1) for kind in (one, other)}
    return pa.list_(value, sizes.pop() if len(sizes) == 1 else -1)


def _wider_struct(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    names = dict.fromkeys(field.name for kind in (one, other) for field in kind)
    fields = []
    for name in names:
        matching = [kind.field(name) for kind in (one, other) if kind.get_field_index(name) >= 0]
        field = unify_field(matching) if matching else None  # none if a name occurs twice
        if field is None:
            return None
        fields.append(field.with_nullable(len(matching) == 1 or field.nullable))
    return pa.struct(fields)


def map_types(kind: pa.DataType, changed: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with each leaf type (no struct, map or list) replaced by `changed(leaf)`."""
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(map_types(field.type, changed)) for field in kind])
    if kinds.is_map(kind):
        item = kind.item_field.with_type(map_types(kind.item_type, changed))
        return pa.map_(map_types(kind.key_type, changed), item)
    if not is_list(kind):
        return changed(kind)
    value = kind.value_field.with_type(map_types(kind.value_type, changed))
    if kinds.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return (pa.large_list if kinds.is_large_list(kind) else pa.list_)(value)


def map_nulls(kind: pa.DataType) -> pa.DataType:
    """Return the type with the type of texts instead of null, at any depth."""
    return map_types(kind, lambda inner: pa.string() if kinds.is_null(inner) else inner)


def is_complete(schema: pa.Schema) -> bool:
    """Return whether no column type is null or contains null."""
    return all(map_nulls(kind) == kind for kind in schema.types)


ResolveConflict = Callable[[pa.DataType, pa.DataType], pa.DataType]
"""Returns the type of a column whose two types have no common type."""


def agreed_types(schemas: Iterable[pa.Schema], resolve: ResolveConflict) -> dict[str, pa.DataType]:
    """Return the type of each column for file formats without a schema. If files differ, the type
    is widened. If that is impossible, `resolve` chooses it."""
    agreed: dict[str, pa.DataType] = {}
    for field in (field for schema in schemas for field in schema):
        known = agreed.get(field.name, field.type)
        wider = unify_types(known, field.type)
        agreed[field.name] = resolve(known, field.type) if wider is None else wider
    return agreed


def shared_types(
    schemas: Mapping[str, pa.Schema], fix: str = "read them in two jobs"
) -> dict[str, pa.DataType]:
    """Return the type of each column for file formats with a schema. If files differ, the type is
    widened. `schemas` has the schemas by file name. Raises BadInput if two types have no common
    type. The message ends with `fix`, or with advice about a missing time zone."""
    shared: dict[str, pa.DataType] = {}
    where: dict[str, str] = {}
    for file, schema in schemas.items():
        for field in schema:
            known = shared.get(field.name, pa.null())
            wider = unify_types(known, field.type)
            if wider is None:
                if kinds.is_timestamp(known) and kinds.is_timestamp(field.type):
                    fix = "set read.options.assumeTimezone, such as to UTC"
                raise BadInput(
                    f"column '{field.name}' is {known} in {where[field.name]} and {field.type} in "
                    f"{file}, and no type holds both. Write these files with one type, or {fix}"
                )
            if wider != known:
                shared[field.name], where[field.name] = wider, file
    return shared


def with_types(table: pa.Table, types: Mapping[str, pa.DataType]) -> pa.Table:
    """Return the table with its columns cast to the types that all files share. A column with a
    wider type than the shared one is not changed. Raises TypeError for a column with an
    incompatible type, and ArrowInvalid for a value that does not fit."""
    for index, field in enumerate(table.schema):
        shared = types.get(field.name, field.type)
        if field.type == shared or isinstance(shared, pa.ExtensionType):
            continue
        wider = unify_types(shared, field.type)
        if wider is None:
            raise TypeError(f"column '{field.name}' is {field.type}, and {shared} in other files")
        if wider == shared:
            try:
                column = exact_cast(table.column(index), shared)
            except pa.ArrowInvalid as error:
                problem = f"column '{field.name}' is {shared} in other files"
                raise pa.ArrowInvalid(f"{problem}: {error}") from None
            table = table.set_column(index, pa.field(field.name, shared), column)
    return table


def exact_cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column cast to a type without changing values. Only fractions may be rounded, to the
    nearest floating-point number. Raises ArrowInvalid for a value that would change, and for a
    struct field that the type lacks. Also raises it if a time zone would be added or removed.
    Raises ArrowNotImplementedError if there is no such cast."""
    arrays = plain_column(column).chunks or [pa.nulls(0, without_views(column.type))]
    return pa.chunked_array([_exact_array(array, kind) for array in arrays], kind)


def cast_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column as Arrow casts it to a type."""
    if column.type == kind:
        return column
    return pa.chunked_array([castable(chunk).cast(kind) for chunk in column.chunks], kind)


def castable(array: pa.Array) -> pa.Array:
    """Return the array, copied if it is a part of an array with nested values of type null: Arrow
    fails to cast structs in such parts."""
    inner = (array.type.field(index).type for index in range(array.type.num_fields))
    if any(kinds.is_null(leaf) for kind in inner for leaf in nested_types(kind)):
        return array.take(pa.array(range(len(array)), pa.int64()))
    return array


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with the type that `without_views` returns, and the same values."""
    if (kind := without_views(column.type)) == column.type:
        return column
    return pa.chunked_array([_plain_array(chunk, kind) for chunk in column.chunks], kind)


def _plain_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with the type that `without_views` returns. Arrow would cast views of lists
    to invalid arrays. Conversions through Python would lose nanoseconds."""
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    if array.type == kind:
        return array
    nulls = array.is_null()
    if kinds.is_struct(kind):
        parts = map(_plain_array, array.flatten(), [field.type for field in kind])
        return pa.StructArray.from_arrays([*parts], fields=[*kind], mask=nulls)
    if kinds.is_map(kind):
        keys = _plain_array(_in_maps(array, "keys"), kind.key_type)
        items = _plain_array(_in_maps(array, "items"), kind.item_type)
        ends = pc.subtract(array.offsets, array.offsets[0])
        return pa.MapArray.from_arrays(ends, keys, items, kind, mask=nulls)
    if not is_list(kind):
        is_encoded = kinds.is_run_end_encoded(array.type)
        return pc.run_end_decode(array) if is_encoded else array.cast(kind)
    if kinds.is_null(kind.value_type):  # `flatten` returns too few nulls
        return pa.array(array.to_pylist(), kind)
    is_large = kinds.is_large_list(kind)
    lists, offset = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
    lengths = pc.list_value_length(array).fill_null(0).cast(offset)
    ends = pc.cumulative_sum_checked(pa.concat_arrays([pa.array([0], offset), lengths]))
    values = _plain_array(array.flatten(), kind.value_type)
    if kinds.is_fixed_size_list(kind):
        return lists.from_arrays(ends, values, mask=nulls).cast(kind)
    return lists.from_arrays(ends, values, kind, mask=nulls)


def _exact_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == pa.uuid() and is_text(kind):  # Arrow would read its bytes as a text
        return pa.array([value and str(value) for value in array.to_pylist()], kind)
    check_fraction_digits(array, kind)
    text = map_types(array.type, lambda leaf: pa.string() if kinds.is_decimal(leaf) else leaf)
    has_fractions = any(map(kinds.is_floating, nested_types(kind)))
    # as texts, because Arrow casts the decimal 99.99 and the text 99.99 to different floats
    array = castable(array)
    cast = (array.cast(text) if has_fractions else array).cast(kind)
    for before, after in _leaves(array, cast):
        if before.type != after.type and not kinds.is_null(before.type):
            _check_meaning(before.type, after.type)
            if not _is_kept(before, after):
                raise pa.ArrowInvalid(f"a value of {before.type} would be changed as {after.type}")
    return cast


def _leaves(array: pa.Array, cast: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield pairs of leaf arrays (neither struct, map nor list) before and after a cast. Raises
    ArrowInvalid for a field that the cast has dropped."""
    if kinds.is_struct(array.type):
        fields = dict(zip(cast.type.names, cast.flatten(), strict=True))
        for name, values in zip(array.type.names, array.flatten(), strict=True):
            if name not in fields:
                raise pa.ArrowInvalid(f"it has a field '{name}', which the type lacks")
            yield from _leaves(values, fields[name])
    elif kinds.is_map(array.type):
        for part in ("keys", "items"):
            yield from _leaves(_in_maps(array, part), _in_maps(cast, part))
    elif is_list(array.type):
        yield from _leaves(array.flatten(), cast.flatten())
    else:
        yield array.cast(plain_type(array.type)), cast


def _in_maps(maps: pa.MapArray, part: str) -> pa.Array:
    """Return the keys or items of a map array. `maps.keys` and `maps.items` ignore slicing."""
    return pa.ListArray.from_arrays(maps.offsets, getattr(maps, part)).flatten()


def _check_kinds(source: pa.DataType, target: pa.DataType) -> None:
    """Raise ArrowInvalid for a cast that would turn values into another kind, at any depth.
    Examples are bytes as a text, 1 as true, '007' as 7.0, and a time at midnight as a day."""
    source, target = plain_type(source), plain_type(target)
    if is_bytes(source) and is_text(target):
        raise pa.ArrowInvalid("bytes are not text. Decode them in a step")
    if is_text(source) and is_bytes(target):
        raise pa.ArrowInvalid("a text is not bytes. Encode it in a step")
    groups = _group_of(source), _group_of(target)
    day = kinds.is_timestamp(source) and kinds.is_date(target)
    if day or (None not in groups and groups[0] != groups[1]):
        raise pa.ArrowInvalid(f"{source} is not {target}. Convert it in a step")
    if kinds.is_struct(source) and kinds.is_struct(target):
        names = [name for name in source.names if target.get_field_index(name) >= 0]
        pairs = [(source.field(name).type, target.field(name).type) for name in names]
    else:
        pairs = list(zip(_inner_types(source), _inner_types(target), strict=False))
    for pair in pairs:
        _check_kinds(*pair)


def _group_of(kind: pa.DataType) -> str | None:
    groups = {
        "text": is_text,
        "boolean": kinds.is_boolean,
        "number": is_number,
        "time": kinds.is_temporal,
    }
    return next((name for name, is_in_group in groups.items() if is_in_group(kind)), None)


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(number).type for number in range(kind.num_fields)]


def _check_meaning(source: pa.DataType, target: pa.DataType) -> None:
    """Raise an Arrow error for a cast between numbers and times, or of UUIDs to texts. Also raise
    one if it adds or removes a time zone."""
    both = (source, target)
    if any(map(is_number, both)) and any(map(kinds.is_temporal, both)):
        raise pa.ArrowNotImplementedError(f"{source} is no {target}")
    if source == pa.uuid() and is_text(target):
        raise pa.ArrowInvalid("it has UUIDs in a list or struct. Make them texts in a python step")
    if kinds.is_timestamp(target) and kinds.is_date(source) and target.tz:
        raise pa.ArrowInvalid(f"it is {source}, without a time zone. Declare date")
    both_timestamps = all(map(kinds.is_timestamp, both))
    if both_timestamps and (not source.tz) != (not target.tz):
        fix = "a type with a time zone" if source.tz else "assumeTimezone"
        raise pa.ArrowInvalid(f"it is {source}. Set {fix}")


def _is_kept(array: pa.Array, cast: pa.Array) -> bool:
    """Return whether a cast that Arrow allows has kept all values of leaf arrays."""
    import pyarrow.compute as pc  # here, to save memory in commands such as `status`

    source, target = array.type, cast.type
    if kinds.is_floating(target) and kinds.is_floating(source):
        if target.bit_width > source.bit_width:
            return True
        array = array.filter(pc.equal(pc.floor(array), array))  # fractions may be rounded
        return bool(array.cast(target).cast(source).equals(array))
    if kinds.is_floating(target) and (kinds.is_string(source) or kinds.is_large_string(source)):
        rounded_from = 2 ** (24 if kinds.is_float32(target) else 53)  # of integers
        return not pc.any(pc.greater_equal(pc.abs(cast), rounded_from)).as_py()
    if kinds.is_string(target) or (kinds.is_decimal(source) and not kinds.is_floating(target)):
        return True  # Arrow's cast checks these values itself
    return bool(cast.cast(source).equals(array))


def nested_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types nested in it."""
    yield kind
    if kinds.is_dictionary(kind):
        yield kind.value_type
    for index in range(kind.num_fields):
        yield from nested_types(kind.field(index).type)
