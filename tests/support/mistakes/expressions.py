"""Mistakes in the expressions of filters and of addColumns."""

from __future__ import annotations

from support.mistakes import JOB, Mistake

FILTER = "filter: len(text) > 20"
IN_FILTERS = {
    **{"text = 'a'": "text == 'a'", "text == None": "text is None"},
    **{"n > 1 & n < 3": "n > 1 and n < 3", "n > 1 AND n < 3": "n > 1 and n < 3"},
    **{"text =~ 'a'": "matches(text, 'a')", "text LIKE 'a_c'": "matches(text, '^a.c$')"},
    **{"isnull(text)": "text is None", "is_null(n)": "n is None"},
    **{"~n": "n == 0", "not n": "n == 0", "n += 1": "n > 1", "n > ${least}": "n > 1"},
    **{"text.length > 3": "len(text) > 3", "text.len > 3": "len(text) > 3"},
    **{"df.n > 1": "n > 1", "x.n > 1": "n > 1"},
    **{"row['n'] > 1": "n > 1", "row.n > 1": "n > 1"},
    **{"text": "text != ''", "n": "n != 0"},
    **{"n == NaN": "n is None or n != n", "n == ''": "n is None"},
    **{"n ^ 2 > 1": "n * n > 1", "len(n) > 3": "len(str(n)) > 3"},
    **{"text in 'abc'": "text in ['abc']", "text.isdigit()": "matches(text, '^[0-9]+$')"},
    **{"n > 1 and": "n > 1", "n > 1)": "n > 1"},
    **{"n > 1.5$": "n > 1.5", "n > 0,5": "n > 0.5"},
    **{"n not null": "n is not None", "n mod 2 = 0": "n % 2 == 0"},
    **{"text is not empty": "text != ''", "empty(text)": "text == ''"},
    **{"n > +3": "n > 3", "n > 3;": "n > 3", "n > '3'": "n > 3", "'n > 1'": "n > 1"},
    **{"n.gt(3)": "n > 3", "[n] > 3": "n > 3", "if n > 3": "n > 3", "df[df.n > 1]": "n > 1"},
    **{"return n > 3": "n > 3", "len(text": "len(text) > 3", "df.loc[df.n > 3]": "n > 3"},
    **{"n in {1, 2}": "n in [1, 2]", "n == 1 or 2": "n in [1, 2]", "text > 3": "float(text) > 3"},
    **{"text.eq('a')": "text == 'a'", "len(txt) > 3": "len(text) > 3"},
    **{"SELECT * WHERE n > 1": "n > 1", "n in range(1, 5)": "1 <= n < 5"},
    **{"text == good": "text == 'good'", "any([x for x in text])": "n > 1"},
    **{"n between 1 and 3": "1 <= n <= 3", "df['text'] == 'x'": "text == 'x'"},
    **{"n > 1 and < 3": "n > 1 and n < 3", "text IS NOT NULL": "text is not None"},
    **{"f'{text}' == 'x'": "str(text) == 'x'", "my col == 'x'": "col('my col') == 'x'"},
    **{"n is not in [1, 2]": "n not in [1, 2]", "text + n == 'x'": "text + str(n) == 'x'"},
    **{"text[0] == 'a'": "startswith(text, 'a')", "'good' in text": "contains(text, 'good')"},
    **{"text == ('a' or 'b')": "text in ['a', 'b']", "text.find('a') >= 0": "contains(text, 'a')"},
    **{"n >= '3' and n <= '5'": "n >= 3 and n <= 5", "text !~ 'good'": "not matches(text, 'good')"},
    "text LIKE '5\\\\%%'": "matches(text, '^5%')",
    "r['text'].lower() == 'a'": "lower(text) == 'a'",
    "concat(text, n) == 'b'": "str(text) + str(n) == 'b'",
    "ISNULL(n, 0) > 1": "(n if n is not None else 0) > 1",
    "n BETWEEN 1 AND 3 OR n = 7": "1 <= n <= 3 or n == 7",
    "text LIKE '%good%film%'": "matches(text, 'good.*film')",
    "substring(text, 1, 3) == 'abc'": "startswith(text, 'abc')",
    "'good' or 'bad' in text": "contains(text, 'good') or contains(text, 'bad')",
    "startswith(text, ['a', 'b'])": "startswith(text, 'a') or startswith(text, 'b')",
    "any(w in text for w in ['good', 'bad'])": "contains(text, 'good') or contains(text, 'bad')",
}
"""Expressions, and what the answer says to write."""
SAYS = {
    "~n": "Write not n, or n == 0 for a number",
    "n += 1": "Use a step addColumns: {n: n + 1}",
    "n > ${least}": "Write n > least, or {{ params.least }} for a parameter",
    "any([x for x in text])": "or a python step",
    "day in [2024]": "Compare it with a text such as '2026-01-31'",
    "len(txt) > 3": "'text'?",
    "len(text": "the ')' that is missing",
    "text == good": "in quotes: 'good'",
    "n > 1)": "Remove the ')'",
    "day > '01.02.2024'": "Write it as '2026-01-31'",
    "day > now() - 7": "Write day > '{{ params.since }}', and declare the parameter 'since'",
    "day > CURRENT_DATE": "Write day > '{{ params.since }}', and declare the parameter 'since'",
    "text > 3": "Write float(text) > 3 if each is a number, or len(text) > 3",
}
"""Parts of answers that do not have the whole expression."""
IN_LISTS = {
    "'x' in tags": "or ['x' in each for each in batch['tags']] in a python step for a list",
    "tags == 'x'": "Write tags[0] == 'x', or ['x' in each for each in batch['tags']] in a python",
    "contains(tags, 'x')": "or ['x' in each for each in batch['tags']] in a python step",
    "tags in ['x', 'y']": "Read one item, such as tags[0]",
}
"""Expressions over a column of lists, and what the answer says."""
LISTS = {"tags.jsonl": '{"text": "a", "tags": ["x", "y"]}\n'}
OF_LISTS = JOB.replace("format: csv", "format: json").replace("reviews.csv", "tags.jsonl")
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
DAYS = {"reviews.csv": "id,text,n,day\n1,a good book,3,2024-01-01\n2,a bad film,4,2024-12-31\n"}
IN_DATES = {
    "day >= 2024-10-31": "day >= '2024-10-31'",
    "day.dt.year == 2024": "(day >= '2024-01-01' and day < '2025-01-01')",
    "year(day) >= 2024": "day >= '2024-01-01'",
    "day > DATE '2024-01-01'": "day > '2024-01-01'",
    "day > date(2024, 1, 1)": "day > '2024-01-01'",
    "day > now() - 7": "day > '2024-01-01'",
    "day > CURRENT_DATE": "day > '2024-01-01'",
    "day > '01.02.2024'": "day > '2024-02-01'",
    "day == 2024": "day >= '2024-01-01' and day < '2025-01-01'",
    "day in [2024]": "day >= '2024-01-01'",
}
"""Expressions with dates, and what to write."""
MISTAKES = {
    wrong: Mistake(
        f'filter: "{wrong}"', f'filter: "{right}"', FILTER, says=SAYS.get(wrong, f"Write {right}")
    )
    for wrong, right in IN_FILTERS.items()
} | {
    wrong: Mistake(f'filter: "{wrong}"', f'filter: "{right}"', FILTER, DAYS,
                   says=SAYS.get(wrong, f"Write {right}"))
    for wrong, right in IN_DATES.items()
} | {
    wrong: Mistake(f'filter: "{wrong}"', "filter: \"tags[0] == 'x'\"", FILTER, LISTS, says=says,
                   base=OF_LISTS)
    for wrong, says in IN_LISTS.items()
} | IN_COLUMNS  # fmt: skip
