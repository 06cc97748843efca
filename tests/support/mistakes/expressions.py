"""Mistakes in the expressions of filters and of addColumns."""

from __future__ import annotations

from support.mistakes import Mistake

FILTER = "filter: len(text) > 20"
IN_FILTERS = {
    "text = 'a'": "text == 'a'",
    "text == None": "text is None",
    "n > 1 & n < 3": "n > 1 and n < 3",
    "n > 1 AND n < 3": "n > 1 and n < 3",
    "n > 1 && text != null": "n > 1 and text is not None",
    "n <> 1": "n != 1",
    "n === 1": "n == 1",
    "n between 1 and 3": "1 <= n <= 3",
    "n.isin([1, 2])": "n in [1, 2]",
    "text IS NOT NULL": "text is not None",
    "text LIKE 'a%'": "startswith(text, 'a')",
    "'good' in text": "contains(text, 'good')",
    "text =~ 'a'": "matches(text, 'a')",
    "text.str.len() > 3": "len(text) > 3",
    "text.startswith('a')": "startswith(text, 'a')",
    "text.str.contains('a')": "contains(text, 'a')",
    "text.lower().strip() == 'x'": "strip(lower(text)) == 'x'",
    "isnull(text)": "text is None",
    "text.isna()": "text is None",
    "coalesce(n, 0) > 1": "(n if n is not None else 0) > 1",
    "concat(text, 'a') == 'b'": "text + 'a' == 'b'",
    "f'{text}' == 'x'": "str(text) == 'x'",
    "my col == 'x'": "col('my col') == 'x'",
    "text > 3": "float(text) > 3",
    "n > '3'": "n > 3",
    "len(n) > 3": "len(str(n)) > 3",
    "n == 1 or 2": "n in [1, 2]",
    "text.length > 3": "len(text) > 3",
    "text.str.contains('A', case=False)": "contains(lower(text), 'a')",
    "df.n > 1": "n > 1",
    "row['n'] > 1": "n > 1",
    "lambda r: r.n > 1": "n > 1",
    "$n > 1": "n > 1",
    "n => 1": "n >= 1",
    "text[:2] == 'ab'": "startswith(text, 'ab')",
    "text ILIKE '%A%'": "contains(lower(text), 'a')",
    "n NOT BETWEEN 1 AND 3": "not 1 <= n <= 3",
    "n ** 2 > 4": "n * n > 4",
    "lenght(text) > 3": "len(text) > 3",
    "text": "text is not None",
    "df['text'] == 'x'": "text == 'x'",
    "row.n > 1": "n > 1",
    "{text} == 'x'": "text == 'x'",
    "n > 1,000": "n > 1000",
    "text + n == 'x'": "text + str(n) == 'x'",
    "text[:3] == 'abc'": "startswith(text, 'abc')",
    "re.match('a', text)": "matches(text, '^a')",
    "n": "n is not None",
    "len(text": "len(text) > 3",
    "len(txt) > 3": "len(text) > 3",
    "x.n > 1": "n > 1",
    "n == NaN": "n != n",
    "text == good": "text == 'good'",
}
"""Expressions, and what the answer says to write."""
SAYS = {
    "len(txt) > 3": "'text'?",
    "len(text": "the ')' that is missing",
    "text == good": "in quotes: 'good'",
}
"""Parts of answers that do not have the whole expression."""
IN_COLUMNS = {
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
} | IN_COLUMNS
