"""The expression language: valid, unsupported, invalid and hostile expressions."""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batchinference.spec.expression import FUNCTIONS, columns_of, parse_expression
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.refusals import short
from support.tiers import examples

VALID: dict[str, set[str]] = {
    "a": {"a"},
    " a ": {"a"},
    "not a": {"a"},
    "a and b or not c": {"a", "b", "c"},
    "a == 1": {"a"},
    "a != b": {"a", "b"},
    "1 < a <= 3.5": {"a"},
    "a + b * 2 - c / 4 > d % 3": {"a", "b", "c", "d"},
    "-a < -1": {"a"},
    "a == True": {"a"},
    "a == 'text'": {"a"},
    "a == b'\\x89PNG'": {"a"},
    "a in [1, -2, 3.5, 'x', True, None]": {"a"},
    "a not in ('x',)": {"a"},
    "a in []": {"a"},
    "a is None": {"a"},
    "a is not None and b": {"a", "b"},
    "a is None is None": {"a"},
    "len(a) >= 20": {"a"},
    "lower(upper(a)) == 'x'": {"a"},
    "abs(a - b) > 0.1": {"a", "b"},
    "startswith(a, 'x') or endswith(a, 'y')": {"a"},
    "contains(lower(a), 'x')": {"a"},
    "matches(a, '^x+$')": {"a"},
    "matches(a, '\\d+')": {"a"},
    "col('two words') > 1": {"two words"},
    "len(col('a-b')) > c": {"a-b", "c"},
    "len > 1 and len(len) > 2": {"len"},
    "größe > 1": {"größe"},
    "(a\n> 1)": {"a"},
    "a if b else str(c)": {"a", "b", "c"},
    "a > 1_000 # large": {"a"},
    "a.b == 'x' and a['b c'] > 1": {"a"},
    "a[0].label + b.c.d['e'][3]": {"a", "b"},
    "len(a.b) > 1 and col('c d').e[0]": {"a", "c d"},
    "col('a.b') > a.b": {"a", "a.b"},
    "a > 9223372036854775807": {"a"},
    "a > -9223372036854775807": {"a"},
    " or ".join(f"a == {number}" for number in range(200)): {"a"},
    "a" + " + a" * 90: {"a"},
    "(" * 90 + "a" + ")" * 90: {"a"},
}
"""Expressions and the columns that they read."""

UNSUPPORTED = [
    "+a > 1",
    "a // 2",
    "a @ b",
    "a << 1",
    "lambda: a",
    "(a := 1)",
    "await a",
    "{a}",
    "{'a': a}",
    "[a]",
    "(a, b)",
    "a == [1]",
    "[x for x in a]",
    "len([a]) > 1",
    "len(*a)",
    "a == 1j",
    "a == ...",
    "a in [1j]",
    "+a.b" + ".c" * 40,
]
"""Python expressions outside the expression language."""

INVALID = [
    "",
    "a >",
    "a > > 1",
    "a b",
    "./a",
    "class == 'a=1'",
    "a == '. Use =' b",
    "a = 1",
    "a; b",
    "a > 1\nb > 2",
    "'open",
    "len(a",
    "a in ['x'",
    "import os",
    "a or 'b'",
    "contain(a, 'x')",
    "a is 1",
    "None is a",
    "a == None",
    "None != a",
    "1 < a < None",
    "a in b",
    "a in 'text'",
    "a in [b]",
    "a in [[1]]",
    "a in {1, 2}",
    "a > 9223372036854775808",
    "a in [0xffffffffffffffff]",
    "col(a) > 1",
    "col(b'a') > 1",
    "startswith(a, b)",
    "contains('x', a)",
    "len()",
    "len(a, b)",
    "matches(a)",
    "col(name='a')",
    "len(**a)",
    "len(a, more=b)",
    "(" * 150 + "~" * 150 + "a" + ")" * 150,
    "not " * 150 + "a",
]
"""Invalid expressions."""

UNKNOWN = {"print(a)": "print", "a.split('x')": "a.split", "len(a)(b)": "len(a)"}


@pytest.mark.parametrize("text", ["True", "1 < 2", "'a' in ['a']"])
def test_filter_must_read_a_column(text: str, messages: Messages) -> None:
    with messages.raises(ValidationError):
        Step.model_validate({"name": "f", "filter": text})


def refusal_of(text: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_expression(text)
    return str(caught.value)


@pytest.mark.parametrize(("text", "columns"), VALID.items())
def test_expression_columns_are_found(text: str, columns: set[str]) -> None:
    assert columns_of(parse_expression(text)) == columns


@pytest.mark.parametrize("text", UNSUPPORTED)
def test_unsupported_part_of_an_expression_is_named(text: str, messages: Messages) -> None:
    messages.check(refusal_of(text))


@pytest.mark.parametrize("text", INVALID, ids=short)
def test_invalid_expression_is_refused(text: str, messages: Messages) -> None:
    messages.check(refusal_of(text))


@pytest.mark.parametrize("key", ["1:", "-1", "True", "b", "1.5", "0, 1", "None", str(2**31)])
def test_other_keys_than_fields_and_items_are_refused(key: str, messages: Messages) -> None:
    messages.check(refusal_of(f"a[{key}] == 1"))


def test_null_byte_is_refused() -> None:
    """Python before 3.11.4 does not report its position."""
    message = "not an expression: source code string cannot contain null bytes"
    assert refusal_of("a\0").removesuffix(" at its end") == message


@pytest.mark.parametrize("text", ["''1", "'a'b", "x contains 'b'1", "\u01c20\u01c2 'a' 1"])
def test_text_beside_a_word_has_no_translation(text: str) -> None:
    assert "Write" not in refusal_of(text)


@pytest.mark.parametrize(("text", "name"), UNKNOWN.items())
def test_unknown_function_is_refused(text: str, name: str) -> None:
    known = ", ".join(FUNCTIONS)
    fix = f"Use one of {known}, or a python step"
    assert refusal_of(text) == f"unknown function '{name}'. {fix}"


TRANSLATIONS = {
    "n > 1 & n < 3": "n > 1 and n < 3",
    "(n > 1) | ~(m < 3)": "(n > 1) or not (m < 3)",
    "a && !b || c": "a and not b or c",
    "a == 'x' | b == '|'": "a == 'x' or b == '|'",
    "a = 1 AND b IS NOT NULL": "a == 1 and b is not None",
    "a <> 1 OR b != NULL": "a != 1 or b is not None",
    "text LIKE 'a%'": "startswith(text, 'a')",
    "lower(t) not like '%b%'": "not contains(lower(t), 'b')",
    "o.t LIKE '%b' AND t LIKE 'c'": "endswith(o.t, 'b') and t == 'c'",
    "a BETWEEN 1 AND 3": "1 <= a <= 3",
    "a is null": "a is None",
    "text.str.len() > 3": "len(text) > 3",
    "text.str.contains('x')": "contains(text, 'x')",
    "lower(a).startswith('x')": "startswith(lower(a), 'x')",
    "a.b.strip().lower() == 'x'": "lower(strip(a.b)) == 'x'",
    "a.isin(['x', 'y'])": "a in ['x', 'y']",
    "a.isna() | b.notnull()": "a is None or b is not None",
    "a.between(1, 3)": "1 <= a <= 3",
    "a.get('b') == 1": "a['b'] == 1",
    "'x' in a.b": "contains(a.b, 'x')",
    "~a": "not a, or a == 0 for a number",
    "r['a'].lower() == 'x'": "lower(a) == 'x'",
    "isNull(a) or a.is_null()": "a is None or a is None",
    "a not in {1, 2}": "a not in [1, 2]",
    "left(a, 2) == 'ab' and right(b, 1) == 'c'": "startswith(a, 'ab') and endswith(b, 'c')",
    "'x' not in a": "not contains(a, 'x'), or ['x' not in each for each in batch['a']] "
    "in a python step for a list",
    "f'{a} and {b}'": "str(a) + ' and ' + str(b)",
    "my col > 1": "col('my col') > 1",
    "first name == 'x' AND last name = 'y'": "col('first name') == 'x' and col('last name') == 'y'",
    "a.class == 'x'": "a['class'] == 'x'",
    "length(trim(a)) > 3": "len(strip(a)) > 3",
    "coalesce(a, 0) > 1": "(a if a is not None else 0) > 1",
    "a.fillna('x') == 'x'": "(a if a is not None else 'x') == 'x'",
    "isnull(a) or pd.notna(b)": "a is None or b is not None",
    "CAST(a AS varchar) = '1'": "str(a) == '1'",
    "a.astype('int64') > 1": "int(a) > 1",
    "a.cast(pl.Float64) > 1": "float(a) > 1",
    "CASE WHEN a > 1 THEN 'x' ELSE b END": "'x' if a > 1 else b",
    "IF(a > 1, 'x', 'y')": "'x' if a > 1 else 'y'",
    "np.where(a > 1, b, c)": "b if a > 1 else c",
    "a RLIKE 'x+'": "matches(a, 'x+')",
    "re.search('x', a)": "matches(a, 'x')",
    "pl.col('a') > F.col('b c')": "a > col('b c')",
    "a || ' ' || b": "str(a) + ' ' + str(b)",
    "concat(a, 'x', b)": "str(a) + 'x' + str(b)",
    "mod(a, 2) == 0": "a % 2 == 0",
    "a.str.contains('a|b')": "matches(a, 'a|b')",
    "a = 'it''s'": 'a == "it\'s"',
    "a == 'it''s'": 'a == "it\'s"',
    "a.round(2) > 1": "round(a, 2) > 1",
    "a NOT BETWEEN 1 AND 3": "not 1 <= a <= 3",
    "t ILIKE '%Good%'": "contains(lower(t), 'good')",
    "t.str.contains('Good', case=False, na=False)": "contains(lower(t), 'good')",
    "~t.isin(['x'])": "not t in ['x']",
    "t matches '^a'": "matches(t, '^a')",
    "t ~ '^a' and b starts with 'c'": "matches(t, '^a') and startswith(b, 'c')",
    "t.str.match('a|b')": "matches(t, '^(?:a|b)')",
    "re.match('a', t)": "matches(t, '^a')",
    "t.startswith(('a', 'b'))": "startswith(t, 'a') or startswith(t, 'b')",
    "t[:3] == 'abc' and t[-1] == 'd'": "startswith(t, 'abc') and endswith(t, 'd')",
    "LEN(t) = 3": "len(t) == 3",
    "len t > 3": "len(t) > 3",
    "lenght(t) > 3": "len(t) > 3",
    "t.length() > 3": "len(t) > 3",
    "a::text = '1'": "str(a) == '1'",
    "a => 1 and b =< 2 and c !== 3": "a >= 1 and b <= 2 and c != 3",
    "a > 1; b > 2": "a > 1 and b > 2",
    "$a > 1 and @b > 1 and ${c} > 1": "a > 1 and b > 1 and c > 1",
    "{{ a }} > 1 and `b c` > 1": "a > 1 and col('b c') > 1, or {{ params.a }} for a parameter",
    "a > 1,000": "a > 1000",
    "a > 1 ? 'x' : 'y'": "'x' if a > 1 else 'y'",
    "a == \u201cgood\u201d": "a == 'good'",
    "lambda r: r['a'] > 1 and r.b": "a > 1 and b",
    "df['a b'].str.len() > df.c": "len(col('a b')) > c",
    "a == 1 or 2": "a in [1, 2]",
    "a is True": "a == True",
    "np.isnan(a)": "a != a",
    "max(a, 1) > np.minimum(b, c)": "(a if a > 1 else 1) > (b if b < c else c)",
    "a ** 2 > 4": "a * a > 4",
    "t.str.contains('A|b', case=False)": "matches(t, '(?i)A|b')",
    "t.str.contains('a|b', regex=False)": "contains(t, 'a|b')",
    "t.str.contains('A|b', literal=True, case=False)": "contains(lower(t), 'a|b')",
    "(a == 1) | (b == 2) and (c == 3)": "(a == 1 or b == 2) and c == 3",
    "not (a == 1) | (b == 2)": "not (a == 1 or b == 2)",
    "a is not None & b > 1": "a is not None and b > 1",
    "a is not 1 or b is not 'x'": "a != 1 or b != 'x'",
    "a =! 1 and b ! = 2": "a != 1 and b != 2",
    "re.search('a', t) is not None": "matches(t, 'a')",
    "re.match('a', t) is None": "not matches(t, '^a')",
    "a = NaN": "a is None or a != a",
    "a == a good book": "a == 'a good book'",
    "filter a > 1": "a > 1",
    "row => row.a > 1": "a > 1",
    "a > 2024-01-01": "a > '2024-01-01'",
    "a > 08": "a > 8",
}
"""Other languages, and what a message says to write instead."""


@pytest.mark.parametrize(("text", "written"), TRANSLATIONS.items())
def test_other_languages_are_translated(text: str, written: str) -> None:
    problem, _, advice = refusal_of(text).partition(". Write ")
    assert advice == written
    assert ". Use " not in problem
    assert columns_of(parse_expression(advice.partition(", or ")[0]))


@pytest.mark.parametrize(
    "text",
    [
        *("flags & 4", "(flags & 4) == 4", "flags & mask == mask | 1", "~1 == a", "a | 'x'"),
        *("-a between 1 and 5", "b + a LIKE 'x%'", "flags & 4 > 0", "a xor b"),
        *(
            "length of text > 3",
            "round(n, m)",
            "f'{n:.2f}'",
            "a || b",
            "a.astype(kind)",
            "SELECT a FROM b",
            "a.split('x')",
        ),
        *("a == 1 | b == 2 and c == 3", "(a = 1) | (b = 2) AND (c = 3)", "a == 08"),
        *("t.str.contains('x', na=True)", "~t.str.contains('x', na=False)"),
        *("t.str.match('A.b', case=False)", "a is not True"),
        *("text.find('x', case=False)", "a ** 3", "x = n > 1", "a " + "or b AND " * 30 + "c"),
    ],
)
def test_no_wrong_translation_is_advised(text: str) -> None:
    assert ". Write " not in refusal_of(text)


def test_a_constant_is_an_expression_and_no_condition() -> None:
    assert columns_of(parse_expression("'web'")) == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_requires_its_number_of_arguments(name: str) -> None:
    arguments = ["'x'"] * FUNCTIONS[name]
    assert parse_expression(f"{name}({', '.join(arguments)}) == column")
    with pytest.raises(ValueError, match=rf"^{name}\(\) takes {FUNCTIONS[name]} argument"):
        parse_expression(f"{name}({', '.join([*arguments, arguments[0]])}) == column")


def test_negative_number_becomes_a_constant() -> None:
    tree = parse_expression("a in [-1, - 2.5]")
    assert isinstance(tree, ast.Compare)
    (right,) = tree.comparators
    assert isinstance(right, ast.List)
    assert [ast.unparse(element) for element in right.elts] == ["-1", "-2.5"]
    assert all(isinstance(element, ast.Constant) for element in right.elts)


def test_pattern_with_backslash_raises_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_expression("matches(a, '\\d')")


@pytest.mark.parametrize(
    "text",
    [
        "-" * 5000 + "a",
        "~" * 300 + "a",
        "a" + "+a" * 5000,
        "a" + ".b" * 900,
        "(" * 5000 + "a",
        "[" * 199 + "]" * 199,
        "a > " + "9" * 9000,
        "a > 0x" + "f" * 9000,
        "a in [" + "1," * 5000 + "]",
        "\ud800",
        "a" * 100_000,
    ],
    ids=lambda text: ascii(text[:6]),
)
def test_hostile_expression_parses_or_raises_value_error(text: str) -> None:
    _parse_or_raise_value_error(text)


TOKENS = [
    *("a", "col", "len", "None", "True", "1", "-1", "1.5", "1j", "'x'", "b'x'", "f'{a}'", "..."),
    *("(", ")", "[", "]", "{", "}", ",", ":", ":=", ".", "=", "==", "<", "in", "not", "is"),
    *("and", "or", "if", "else", "for", "lambda", "*", "**", "~", "@", "\n", "#", "\\", "\0"),
]


@given(st.text())
@example("\ud800")
@settings(max_examples=examples(500), deadline=None)
def test_random_text_parses_or_raises_value_error(text: str) -> None:
    _parse_or_raise_value_error(text)


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map(" ".join))
@settings(max_examples=examples(600), deadline=None)
def test_random_tokens_parse_or_raise_value_error(text: str) -> None:
    _parse_or_raise_value_error(text)


def _parse_or_raise_value_error(text: str) -> None:
    try:
        tree = parse_expression(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both ends are fine
        return
    assert parse_expression(ast.unparse(tree))
