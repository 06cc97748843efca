"""The expression language: valid, unsupported, invalid and hostile expressions."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from batchinference.spec.expression import FUNCTIONS, columns_of, parse_expression
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.refusals import short
from support.documents.yaml_files import read_yaml
from support.tiers import examples

EXPRESSIONS = read_yaml(Path(__file__).with_name("expressions.yaml"))
"""Valid expressions with the columns that they read, Python outside of the language, invalid texts,
and other languages with what a message says to write instead."""
LONG = [" or ".join(f"a == {number}" for number in range(200)), "a" + " + a" * 90]
LONG += ["(" * 90 + "a" + ")" * 90]
TOO_DEEP = ["(" * 150 + "~" * 150 + "a" + ")" * 150, "not " * 150 + "a"]


@pytest.mark.parametrize("text", ["True", "1 < 2", "'a' in ['a']"])
def test_filter_must_read_a_column(text: str, messages: Messages) -> None:
    with messages.raises(ValidationError):
        Step.model_validate({"name": "f", "filter": text})


def refusal_of(text: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_expression(text)
    return str(caught.value)


@pytest.mark.parametrize(("text", "columns"), EXPRESSIONS["valid"].items())
def test_expression_columns_are_found(text: str, columns: list[str]) -> None:
    assert columns_of(parse_expression(text)) == set(columns)


def test_long_expression_is_valid() -> None:
    assert [columns_of(parse_expression(text)) for text in LONG] == [{"a"}] * 3


@pytest.mark.parametrize("text", [*EXPRESSIONS["unsupported"], "+a.b" + ".c" * 40])
def test_unsupported_part_of_an_expression_is_named(text: str, messages: Messages) -> None:
    messages.check(refusal_of(text))


@pytest.mark.parametrize("text", [*EXPRESSIONS["invalid"], *TOO_DEEP], ids=short)
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


@pytest.mark.parametrize(("text", "name"), EXPRESSIONS["unknown"].items())
def test_unknown_function_is_refused(text: str, name: str) -> None:
    known = ", ".join(FUNCTIONS)
    fix = f"Use one of {known}, or a python step"
    assert refusal_of(text) == f"unknown function '{name}'. {fix}"


@pytest.mark.parametrize(("text", "written"), EXPRESSIONS["translations"].items())
def test_other_languages_are_translated(text: str, written: str) -> None:
    problem, _, advice = refusal_of(text).partition(". Write ")
    assert advice == written
    assert ". Use " not in problem
    assert columns_of(parse_expression(advice.partition(", or ")[0]))


@pytest.mark.parametrize("text", [*EXPRESSIONS["untranslated"], "a " + "or b AND " * 30 + "c"])
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
