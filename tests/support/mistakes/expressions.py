"""Mistakes in the expressions of filters and of addColumns."""

from __future__ import annotations

from support.mistakes import JOB, Mistake

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
    "text": "text != ''",
    "df['text'] == 'x'": "text == 'x'",
    "row.n > 1": "n > 1",
    "{text} == 'x'": "text == 'x'",
    "n > 1,000": "n > 1000",
    "text + n == 'x'": "text + str(n) == 'x'",
    "text[:3] == 'abc'": "startswith(text, 'abc')",
    "re.match('a', text)": "matches(text, '^a')",
    "n": "n != 0",
    "len(text": "len(text) > 3",
    "len(txt) > 3": "len(text) > 3",
    "x.n > 1": "n > 1",
    "n == NaN": "n is None or n != n",
    "n > 0,5": "n > 0.5",
    "n > 1 and < 3": "n > 1 and n < 3",
    "n in range(1, 5)": "1 <= n < 5",
    "n ^ 2 > 1": "n * n > 1",
    "n == ''": "n is None",
    "ISNULL(n, 0) > 1": "(n if n is not None else 0) > 1",
    "'good' or 'bad' in text": "contains(text, 'good') or contains(text, 'bad')",
    "any(w in text for w in ['good', 'bad'])": "contains(text, 'good') or contains(text, 'bad')",
    "text == ('a' or 'b')": "text in ['a', 'b']",
    "text in 'abc'": "text in ['abc']",
    "startswith(text, ['a', 'b'])": "startswith(text, 'a') or startswith(text, 'b')",
    "text LIKE '%good%film%'": "matches(text, 'good.*film')",
    "text LIKE 'a_c'": "matches(text, '^a.c$')",
    "text.find('a') >= 0": "contains(text, 'a')",
    "text.isdigit()": "matches(text, '^[0-9]+$')",
    "substring(text, 1, 3) == 'abc'": "startswith(text, 'abc')",
    "text[0] == 'a'": "startswith(text, 'a')",
    "text.len > 3": "len(text) > 3",
    "'n > 1'": "n > 1",
    "SELECT * WHERE n > 1": "n > 1",
    "text == good": "text == 'good'",
}
"""Expressions, and what the answer says to write."""
SAYS = {
    "len(txt) > 3": "'text'?",
    "len(text": "the ')' that is missing",
    "text == good": "in quotes: 'good'",
    "text > 3": "Write float(text) > 3 if each is a number, or len(text) > 3",
}
"""Parts of answers that do not have the whole expression."""
IN_COLUMNS = {
    "a text and a number": Mistake(
        "addColumns: {url: \"'https://x/' + id\"}",
        "addColumns: {url: \"'https://x/' + str(id)\"}", FILTER,
        says="Write 'https://x/' + str(id)",
    ),
    "the beginning of a text": Mistake(
        'addColumns: {a: "text[:100]"}', "addColumns: {a: text}", FILTER, says="a python step"
    ),
    "CASE WHEN": Mistake(
        "addColumns: {k: \"CASE WHEN n > 5 THEN 'a' WHEN n > 1 THEN 'b' ELSE 'c' END\"}",
        "addColumns: {k: \"'a' if n > 5 else 'b' if n > 1 else 'c'\"}", FILTER,
        says="Write 'a' if n > 5 else 'b' if n > 1 else 'c'",
    ),
    "no else": Mistake(
        "addColumns: {k: \"'a' if n > 5\"}", "addColumns: {k: \"'a' if n > 5 else None\"}", FILTER,
        says="Write 'a' if n > 5 else None",
    ),
    "a parameter without braces": Mistake(
        "filter: n > params.least", "filter: n > {{ params.least }}", FILTER,
        says="Write n > {{ params.least }}",
        base=f"{JOB}  parameters: [{{name: least, value: '3', type: number}}]\n",
    ),
    "a mean of all rows": Mistake(
        "filter: n > mean(n)", "filter: n > 3", FILTER, says="{{ params.NAME }} for a parameter"
    ),
    "the item of a struct": Mistake(
        "filter: sentiment[0]['label'] == 'POSITIVE'", "filter: sentiment.label == 'POSITIVE'",
        FILTER, {"reviews.jsonl": '{"text": "a", "sentiment": {"label": "POSITIVE"}}\n'},
        says="Write sentiment['label'] == 'POSITIVE'",
        base=JOB.replace("csv", "json", 1).replace("reviews.csv", "reviews.jsonl"),
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
DAYS = {"reviews.csv": "id,text,n,day\n1,a good book,3,2024-01-01\n2,a bad film,4,2024-12-31\n"}
IN_DATES = {
    "day >= 2024-10-31": ("day >= '2024-10-31'",),
    "day.dt.year == 2024": ("(day >= '2024-01-01' and day < '2025-01-01')",),
    "year(day) >= 2024": ("day >= '2024-01-01'",),
    "day > DATE '2024-01-01'": ("day > '2024-01-01'",),
    "day > date(2024, 1, 1)": ("day > '2024-01-01'",),
    "day > now() - 7": ("day > '2024-01-01'", "Write day > '{{ params.since }}', and"),
    "day > CURRENT_DATE": ("day > '2024-01-01'", "Write day > '{{ params.since }}'"),
}
"""Expressions with dates, what to write, and what the answer says instead."""


def _of_day(wrong: str, right: str, says: str = "") -> Mistake:
    says = says or f"Write {right}"
    return Mistake(f'filter: "{wrong}"', f'filter: "{right}"', FILTER, DAYS, says=says)


MISTAKES = (
    {
        wrong: Mistake(
            f'filter: "{wrong}"',
            f'filter: "{right}"',
            FILTER,
            says=SAYS.get(wrong, f"Write {right}"),
        )
        for wrong, right in IN_FILTERS.items()
    }
    | IN_COLUMNS
    | {f"{wrong} (a date)": _of_day(wrong, *fix) for wrong, fix in IN_DATES.items()}
)
