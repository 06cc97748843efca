"""Mistakes in the expressions of filters and of addColumns."""

from __future__ import annotations

from support.mistakes import JOB, Mistake

FILTER = "filter: len(text) > 20"
IN_FILTERS = {
    "text = 'a'": "text == 'a'",
    "text == None": "text is None",
    "n > 1 & n < 3": "n > 1 and n < 3",
    "n > 1 AND n < 3": "n > 1 and n < 3",
    "n between 1 and 3": "1 <= n <= 3",
    "text IS NOT NULL": "text is not None",
    "'good' in text": "contains(text, 'good')",
    "text =~ 'a'": "matches(text, 'a')",
    "isnull(text)": "text is None",
    "concat(text, n) == 'b'": "str(text) + str(n) == 'b'",
    "is_null(n)": "n is None",
    "n in {1, 2}": "n in [1, 2]",
    "~n": "n == 0",
    "r['text'].lower() == 'a'": "lower(text) == 'a'",
    "f'{text}' == 'x'": "str(text) == 'x'",
    "my col == 'x'": "col('my col') == 'x'",
    "text > 3": "float(text) > 3",
    "n > '3'": "n > 3",
    "len(n) > 3": "len(str(n)) > 3",
    "n == 1 or 2": "n in [1, 2]",
    "text.length > 3": "len(text) > 3",
    "df.n > 1": "n > 1",
    "row['n'] > 1": "n > 1",
    "text": "text is not None",
    "df['text'] == 'x'": "text == 'x'",
    "row.n > 1": "n > 1",
    "text + n == 'x'": "text + str(n) == 'x'",
    "n": "n is not None",
    "len(text": "len(text) > 3",
    "len(txt) > 3": "len(text) > 3",
    "x.n > 1": "n > 1",
    "n == NaN": "n != n",
    "text == good": "text == 'good'",
}
"""Expressions, and what the answer says to write."""
SAYS = {
    "~n": "or n == 0 for a number",
    "len(txt) > 3": "'text'?",
    "len(text": "the ')' that is missing",
    "text == good": "in quotes: 'good'",
}
"""Parts of answers that do not have the whole expression."""
IN_LISTS = {
    "'x' in tags": "or tags[0] == 'x' for the first item",
    "tags == 'x'": "Write tags[0] == 'x'",
    "contains(tags, 'x')": "Read one item, such as tags[0]",
    "tags in ['x', 'y']": "Read one item, such as tags[0]",
}
"""Expressions over a column of lists, and what the answer says."""
LISTS = {"tags.jsonl": '{"text": "a", "tags": ["x", "y"]}\n'}
OF_LISTS = JOB.replace("format: csv", "format: json").replace("reviews.csv", "tags.jsonl")
IN_COLUMNS = {
    "texts that SQL joins": Mistake(
        "addColumns: {a: \"text || 'a'\"}", "addColumns: {a: \"str(text) + 'a'\"}", FILTER,
        says="Write str(text) + 'a'",
    ),
    "a comma without quotes": Mistake(
        "addColumns: {p: round(n, 2)}", 'addColumns: {p: "round(n, 2)"}', FILTER,
        says='p: "round(n, 2)"',
    ),
    "a comma before a text": Mistake(
        "addColumns: {g: contains(text, 'good')}",
        "addColumns: {g: \"contains(text, 'good')\"}", FILTER,
        says="g: \"contains(text, 'good')\"",
    ),
    "a list without quotes": Mistake(
        "addColumns: {g: text in ['a', 'b']}", "addColumns: {g: \"text in ['a', 'b']\"}", FILTER,
        says="g: \"text in ['a', 'b']\"",
    ),
    "a text as a value": Mistake(
        "addColumns: {source: web}", "addColumns: {source: \"'web'\"}", FILTER, says="\"'web'\""
    ),
    "a column of the same step": Mistake(
        "addColumns: {a: n * 2, b: a + 1}",
        "addColumns: {a: n * 2}\n  - name: later\n    addColumns: {b: a + 1}", FILTER,
        says="in a later step",
    ),
    "a list of columns": Mistake(
        "addColumns: [n]", "addColumns: {m: n}", FILTER, says="{NAME: EXPRESSION}"
    ),
    "an expression as an input": Mistake(
        "inputs: {text: lower(text)}", "inputs: {text: text}", says="addColumns"
    ),
}  # fmt: skip
MISTAKES = {
    wrong: Mistake(
        f'filter: "{wrong}"', f'filter: "{right}"', FILTER, says=SAYS.get(wrong, f"Write {right}")
    )
    for wrong, right in IN_FILTERS.items()
} | {
    wrong: Mistake(f'filter: "{wrong}"', "filter: \"tags[0] == 'x'\"", FILTER, LISTS, says=says,
                   base=OF_LISTS)
    for wrong, says in IN_LISTS.items()
} | IN_COLUMNS  # fmt: skip
