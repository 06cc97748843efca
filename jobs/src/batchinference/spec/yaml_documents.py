"""Parses YAML into BatchInference objects and platform settings."""

import re
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.error import MarkedYAMLError
from yaml.parser import ParserError
from yaml.scanner import ScannerError

from batchinference.spec.job import API_VERSION, KIND, BatchInference
from batchinference.spec.parameters import ParameterValues, substitute
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.problems import MAX_SHOWN, Problem, SpecError, did_you_mean, type_name
from batchinference.spec.validation_messages import problems_of
from batchinference.spec.yaml_repair import repair

Model = TypeVar("Model", bound=BaseModel)

_MERGE = "tag:yaml.org,2002:merge"
_YAML_HINTS = {
    r"'\t'": ". Write spaces instead of tabs",
    "'`'": ". Leave out the marks of a code block, or put the text in quotes",
    "unhashable key": ": a key must be a text. Put one that begins with '{' or '[' in quotes",
    "undefined alias": ". Define it above with '&', or put a text that begins with '*' in quotes",
    "escape": ". Write '/' instead of '\\', or put the text in single quotes",
    "mapping values are not allowed": ". Put a text that contains ': ' in quotes",
    "unexpected end of stream": ". Close the quote that begins there",
    "expected ',' or": ". Add the ',' or the bracket that is missing before it",
}
"""Fixes that are appended to PyYAML error messages, by a text that the message contains."""


MAX_VALUES = 1_000_000
"""Maximum number of values in a YAML text if all aliases are expanded."""

MAX_MERGED, MAX_KEYS = 100, 10_000
"""Maximum number of mappings that one mapping merges (<<), and of the keys of the result."""


class _Loader(yaml.SafeLoader):
    """A safe loader that also rejects duplicate keys, large merges, and octal numbers in jobs."""

    def construct_document(self, node: yaml.Node) -> Any:
        fields = node.value if isinstance(node, yaml.MappingNode) else ()
        kinds = [str(value.value) for name, value in fields if name.value == "kind"]
        self._is_ours = bool(kinds) and all(kind.startswith(KIND) for kind in kinds)
        return super().construct_document(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # checked before merge keys (<<) are expanded, because a key may override a merged key
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                problem = f"the key '{key.value}' is given twice. Remove one of them"
                raise MarkedYAMLError(None, None, problem, key.start_mark)
            seen.add((key.tag, key.value))
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # limited, because nested merges of aliases multiply the keys
        merged = [value for key, value in node.value if key.tag == _MERGE]
        lists = (value.value for value in merged if isinstance(value, yaml.SequenceNode))
        if sum(map(len, lists)) > MAX_MERGED:
            raise MarkedYAMLError(None, None, f"more than {MAX_MERGED} merges", node.start_mark)
        super().flatten_mapping(node)
        if len(node.value) > MAX_KEYS:
            problem = f"more than {MAX_KEYS} keys with those that are merged"
            raise MarkedYAMLError(None, None, problem, node.start_mark)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # raises ValueError for thousands of digits
                octal = self._is_ours and re.fullmatch("0[0-7]+", node.value)
                if octal and (decimal := int(node.value)) != value:
                    problem = f"{node.value} is octal, and means {value}. Write {decimal}, or"
                    text = f"{problem} '{node.value}' for a text"
                    raise MarkedYAMLError(None, None, text, node.start_mark)
            return value
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # PyYAML does not catch errors of Python, such as the ValueError for the date 2020-13-45
            kind = node.tag.rsplit(":", 1)[-1]
            problem = f"cannot be read as {kind}. Put it in quotes if it is text"
            raise MarkedYAMLError(None, None, problem, node.start_mark) from None


def load_documents(text: str, kinds: tuple[str, ...] = (KIND,)) -> list[dict[str, Any]]:
    """Return the documents in a YAML stream whose kind is one of `kinds`. Raises SpecError if the
    text is not valid YAML, a document has no kind, or there are no such documents."""
    documents = _load(text)
    for document in documents:
        if not isinstance(document, dict) or "kind" not in document:
            problem = f"expected 'apiVersion: {API_VERSION}' and 'kind: {KIND}'"
            raise SpecError([Problem("", f"{problem}, got {_without_kind(document)}")])
    ours = [document for document in documents if document["kind"] in kinds]
    if not ours:
        others = ", ".join(str(document["kind"]) for document in documents) or "an empty document"
        items = ". Write its items as documents, with a line --- between them"
        near = items if others == "List" else did_you_mean(others, kinds)
        problem = f"expected {' or '.join(kinds)}, got {others[:MAX_SHOWN]}{near}"
        raise SpecError([Problem("kind", problem)])
    return ours


def _without_kind(document: Any) -> str:
    """Return a description of a document that has no kind, and the fix if only its case differs."""
    if not isinstance(document, dict):
        return type_name(document)
    names = [name for name in document if isinstance(name, str) and name.lower() == "kind"]
    return f"'{names[0]}'. Write kind" if names else "a mapping without kind"


def _load(text: str) -> list[Any]:
    """Return the non-empty documents of a YAML stream. Raises SpecError."""
    try:
        documents = _documents_of(text)
        _check_repetitions(documents, {})
        return documents
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError([Problem("", f"not valid YAML: {_reason(error, text)}")]) from None


def _documents_of(text: str) -> list[Any]:
    return [document for document in yaml.load_all(text, _Loader) if document is not None]


def _check_repetitions(value: Any, known: dict[int, int]) -> int:
    """Return the number of nested values in a value if all aliases are expanded. `known` has the
    results for lists and mappings by id. Raises YAMLError above MAX_VALUES, because it would take
    too long to check so many values."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0  # a value may contain an alias of itself
        children = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_check_repetitions(child, known) for child in children)
        if known[id(value)] > MAX_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MAX_VALUES} values")
    return known[id(value)]


def _reason(error: Exception, text: str) -> str:
    """Return the problem, its position and a fix. A line that may have a password is not shown."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    if error.context == "while scanning a quoted scalar":
        mark = error.context_mark  # where the text begins, not where the file ends
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    if _is_syntax(error, text) and (fix := repair(text, error, _documents_of)):
        return fix
    reason = _indentation(error, text) or error.problem or error.context or ""
    hints = (hint for part, hint in _YAML_HINTS.items() if part in reason)
    return where + reason + next(hints, "")


def _indentation(error: MarkedYAMLError, text: str) -> str:
    """Return the message about a line that does not fit its block; empty for another error."""
    block, mark = error.context_mark, error.problem_mark
    names = {"while parsing a block mapping": "keys", "while parsing a block collection": "items"}
    name = names.get(error.context or "")
    if block is None or mark is None or name is None:
        return ""
    if text.splitlines()[mark.line][: mark.column].strip(" -"):
        return "the line goes on after the end of a value. Put the whole value in quotes"
    owner = f"the {name} of the block that begins in line {block.line + 1}"
    return f"this is none of {owner}. Correct the indentation of this line or of those before"


def _is_syntax(error: MarkedYAMLError, text: str) -> bool:
    """Return whether a change of one line may fix the error."""
    problem = error.problem or ""
    is_syntax = isinstance(error, ScannerError | ParserError)
    is_syntax = is_syntax or (problem == "found unhashable key" and "{{" in text)
    return is_syntax and r"'\t'" not in problem and "escape" not in problem


def parse(document: dict[str, Any], values: ParameterValues | None = None) -> BatchInference:
    """Return a document as a BatchInference, with references to parameters replaced by values.
    Raises SpecError with every problem."""
    try:
        return BatchInference.model_validate(substitute(document, values or ParameterValues()))
    except ValidationError as error:
        raise SpecError(problems_of(error, BatchInference)) from None


def parse_one(text: str, values: ParameterValues | None = None) -> BatchInference:
    """Return the one BatchInference in a YAML text. Raises SpecError for errors or a second one."""
    documents = load_documents(text)
    if len(documents) > 1:
        names = ", ".join(map(_name, documents))
        raise SpecError([Problem("", f"expected one {KIND}, found {len(documents)}: {names}")])
    return parse(documents[0], values)


def parse_defaults(text: str) -> PlatformDefaults:
    """Return the defaults of the platform in a YAML text. Raises SpecError with every problem."""
    return parse_settings(text, PlatformDefaults)


def parse_settings(text: str, model: type[Model]) -> Model:
    """Return the settings in a YAML text; the defaults of the model for an empty text. Raises
    SpecError with every problem."""
    documents = _load(text)
    if len(documents) > 1:
        raise SpecError([Problem("", f"expected one document, found {len(documents)}")])
    try:
        return model.model_validate(documents[0] if documents else {})
    except ValidationError as error:
        raise SpecError(problems_of(error, model)) from None


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else "without a name"
