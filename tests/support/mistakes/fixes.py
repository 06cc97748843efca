"""Applies the fix that an answer of `batchinference validate` names to a job or its code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from support.mistakes import Files

_LINE = re.compile(r"not valid YAML: line (\d+): .*\. Write (.*)")
_COLUMN = re.compile(r"not valid YAML: line (\d+): .*Let it begin in column (\d+)")
_CODE = re.compile(
    r".*'steps:\w+' (?:reads|changes|returns) (?P<old>.+?) (?:in |\()line (?P<line>\d+)\)?.*"
    r"Write (?P<new>.+?)(?:(?P<before> before (?:it|the loop.+?))(?:, with '(?P<top>.*?)')?)?"
    r"(?:, or set method.*| for a column)?"
)
_OTHER_CODE = (
    re.compile(r".*Write (?P<new>return .*)(?P<old>) in line (?P<line>\d+)"),
    re.compile(r".*line (?P<line>\d+): '(?P<old>.*)' needs a package, .*Write '(?P<new>.*)'"),
)
_FIELD = re.compile(r"(?P<path>[\w.\[\]]+): (?P<problem>.*)")
_FIX = re.compile(r"(?:.*\. )?(?:(?:Write|Add|Set it to) (?P<text>.*)|Use (?P<word>\S+))")
_MEANT = re.compile(r"(?P<problem>.*); did you mean '(?P<text>[^']*)'\?")
_EXACT = re.compile(
    r"(?!.*(?:[A-Z]{4}|\bOLD\b|\.\.\.|://|\./data|/work|/dbfs|\bme/| instead of |\{name\}|\{\{))"
    r"(?!\{\w+\}$)"
    r"(?!(?:an?|the|each|one|its?|such|five|\d+ to|\{\w+\} in) ).*"
)
"""A fix without words to replace, and without an address that the tests do not reach."""
_OF_TEXT = ("filter", "when", "expect", "addColumns")
"""Fields whose value is shown as it is, and not as YAML."""
_ENDS = r", (?:or|and|in quotes|if)\b.*| or (?:more|less)$| for a (?:column|text)\b.*| if each\b.*"
Change = Callable[[dict[str, Any]], None]


def fixed(job: str, code: str, said: str) -> tuple[str, Files] | None:
    """Return a job and its code with the fix that an answer names; None if it names none that is
    complete."""
    if "\n" in said:
        return None
    lines = job.splitlines()
    if match := _LINE.fullmatch(said):
        at = int(match[1]) - 1
        start = re.match(r"[ -]*", lines[at])
        lines[at] = f"{start[0] if start else ''}{match[2]}"
        return ("\n".join(lines) + "\n", {}) if _EXACT.fullmatch(match[2]) else None
    if match := _COLUMN.match(said):
        at = int(match[1]) - 1
        lines[at] = " " * (int(match[2]) - 1) + lines[at].strip()
        return "\n".join(lines) + "\n", {}
    patterns = (pattern.fullmatch(said) for pattern in (_CODE, *_OTHER_CODE))
    if (match := next(filter(None, patterns), None)) and " in quotes" not in said:
        changed = _fixed_code(code, **match.groupdict())
        return (job, {"steps.py": changed}) if changed else None
    if ".python: " in said and "'steps:" in said:
        return None
    changed = _fixed_field(job, said)
    return (changed, {}) if changed else None


def _fixed_code(
    code: str, old: str, new: str, line: str, before: str | None = None, top: str | None = None
) -> str | None:
    lines = code.splitlines()
    at = int(before.split()[-1] if before and "loop" in before else line) - 1
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    if before:
        lines.insert(at, f"{indent}{new}")
    elif re.match(rf"{re.escape(old)} = ", new):
        lines[at] = f"{indent}{new}"
    elif new.startswith("return "):
        lines[at] = re.sub(r"return .*", new, lines[at])
    elif column := re.fullmatch(r"an? .* in column '(\w+)'", old):
        lines[at] = re.sub(rf"('{column[1]}'\]? ?[:=] ?).+?(}}?)$", rf"\1{new}\2", lines[at])
    elif old in lines[at]:
        text = f"{old}()" if f"{old}()" in lines[at] and "(" in new else old
        lines[at] = lines[at].replace(text, new)
    else:
        return None
    return "\n".join([*([top] if top else []), *lines, ""]) if _EXACT.fullmatch(new) else None


def _fixed_field(job: str, said: str) -> str | None:
    field = _FIELD.fullmatch(said)
    if field is None:
        return None
    document = yaml.safe_load(job)
    top = field["path"].partition(".")[0]
    path = [int(part) if part.isdigit() else part for part in re.findall(r"\w+", field["path"])]
    path = ["spec", *path[path[0] == "spec" :]] if top in ("spec", "read", "write") else path
    meant, fix = _MEANT.fullmatch(field["problem"]), _FIX.fullmatch(field["problem"])
    if meant and (unknown := re.search(r"(?:reads|names) column '(\w+)'", said)):
        return job.replace(unknown[1], meant["text"])
    if meant and not re.search("unknown|not one of", meant["problem"]):
        return None
    if meant is None and fix is None:
        return None
    written = (fix["text"] or fix["word"]) if fix else ""
    if re.search(", or .* for (?:an?|the) ", written):  # it depends on the types
        return None
    text = meant["text"] if meant else re.sub(_ENDS, "", written)
    if not _EXACT.fullmatch(text):
        return None
    owner = document
    for part in path[:-1]:
        owner = owner.setdefault(part, {}) if isinstance(owner, dict) else owner[part]
    if "addColumns" in path[:-1]:
        path = path[: path.index("addColumns") + 1]
        owner = owner if "addColumns" in owner else document["spec"]["steps"][path[2]]
    _set(owner, path[-1], text, renames=bool(re.search("unknown (?:field|option)", said)))
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _set(owner: Any, name: str | int, text: str, *, renames: bool) -> None:
    """Set a field to a text, which may be a value, a field with its value or a name."""
    old = owner.get(name) if isinstance(owner, dict) else owner[name]
    option = re.fullmatch(r"(\w+): .*", text)
    if name == "addColumns" and isinstance(old, dict) and len(old) == 1:
        owner[name] = {next(iter(old)): text}
    elif name in _OF_TEXT:
        owner[name] = text
    elif option and isinstance(old, dict) and option[1] in old:
        old |= yaml.safe_load(text)
    elif option and isinstance(owner, dict):
        owner.pop(name, None)
        owner |= yaml.safe_load(text)
    elif renames:
        owner[text] = owner.pop(name)
    else:
        owner[name] = yaml.safe_load(text)
