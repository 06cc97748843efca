"""Mistakes in the YAML and in the fields of a job."""

from __future__ import annotations

from support.mistakes import SCHEDULE, Mistake

STEP = "  - name: long\n    filter: len(text) > 20\n"
FILTER = "filter: len(text) > 20"


def _added(text: str, right: str, says: str | None = None) -> Mistake:
    """Return a mistake in a field that is added to the spec."""
    old = "  write:\n"
    return Mistake(
        f"  {text}\n{old}", f"  {right}\n{old}", old, says=right if says is None else says
    )


def _step(text: str, right: str, says: str | None = None) -> Mistake:
    """Return a mistake in a field of the model step."""
    return Mistake(text, right, "batchSize: 32", says=says)


def _later(text: str, says: str, column: str = "n") -> Mistake:
    """Return a mistake in a step with a filter after it."""
    return Mistake(f"{text}\n  - name: later\n    filter: {column} > 3", FILTER, says=says)


def _schedule(text: str, right: str = '"30 2 * * *"', says: str | None = None) -> Mistake:
    return Mistake(text, right, '"30 2 * * *"', says=says, base=SCHEDULE)


MISTAKES = {
    "wrong indentation": Mistake("   paths", "    paths", says="in column 5"),
    "a tab": Mistake("\tformat: csv", "    format: csv", says="spaces"),
    "no colon": Mistake("    format csv", "    format: csv", says="Write format: csv"),
    "no colon after a block": Mistake("  steps\n", "  steps:\n", says="Write steps:"),
    "= in place of the colon": Mistake("kind = BatchInference\n", "kind: BatchInference\n",
                                       says="Write kind: BatchInference"),
    "no space after the colon": Mistake("    format:csv", "    format: csv",
                                        says="Write format: csv"),
    "a quote that is not closed": Mistake("'./out", "'./out'", "./out", says="path: './out'"),
    "a bracket that is not closed": Mistake("[./reviews.csv", "[./reviews.csv]",
                                            says="paths: [./reviews.csv]"),
    "a glob without quotes": Mistake("[*.csv]", "['*.csv']", "[./reviews.csv]", says="['*.csv']"),
    "@ without quotes": Mistake("name: @reviews", "name: reviews", says="Write name: reviews"),
    "a quoted text in an expression": Mistake(
        "filter: 'a' != text", "filter: \"'a' != text\"", FILTER
    ),
    "! at the beginning": Mistake(
        "filter: !startswith(text, 'a')", "filter: \"not startswith(text, 'a')\"", FILTER
    ),
    "> at the beginning": Mistake("filter: > 20", 'filter: "n > 20"', FILTER,
                               says='filter: "COLUMN > 20"'),
    "': ' in an expression": Mistake(
        "filter: text != 'a: b'", "filter: \"text != 'a: b'\"", FILTER
    ),
    "a colon in a callable": Mistake(
        "python: {callable: steps: clean}", "python: {callable: 'steps:clean'}", FILTER
    ),
    "no closing brace": Mistake("inputs: {text: text", "inputs: {text: text}"),
    "no colon in braces": Mistake("inputs: {text text}", "inputs: {text: text}",
                                  says="Write 'text: text'"),
    "a text and a column without quotes": Mistake(
        "addColumns:\n      u: 'https://x/' + text",
        "addColumns:\n      u: \"'https://x/' + text\"", FILTER, says="u: \"'https://x/' + text\"",
    ),
    "two conditions as a list": Mistake(
        "filter: [n > 1, len(text) > 3]", "filter: n > 1 and len(text) > 3", FILTER,
        says="Write n > 1 and len(text) > 3",
    ),
    "a block text": Mistake(
        "filter: |\n      n > 1\n      and n < 3", "filter: n > 1 and n < 3", FILTER,
        says="Write n > 1 and n < 3",
    ),
    "a Windows path in double quotes": Mistake(
        '["C:\\data\\a.csv"]', "[./reviews.csv]", says="Write '/'"
    ),
    "an escape in a Windows path": Mistake('["C:\\Users\\a.csv"]', "[./reviews.csv]",
                                          says="Write '/'"),
    "a tab in a Windows path": Mistake('["C:\\temp.csv"]', "[./reviews.csv]", says="Write '/'"),
    "a key twice": Mistake("batchSize: 32\n    batchSize: 64", "batchSize: 32", says="Remove one"),
    "no metadata": Mistake("", "metadata:\n  name: reviews\n", says="metadata: {name: my-name}"),
    "no apiVersion": Mistake("", "apiVersion: batchinference.dev/v1beta1\n",
                             says="apiVersion: batchinference.dev/v1beta1"),
    "another kind": Mistake("kind: RayJob", "kind: BatchInference", says="BatchInference or"),
    "another version": Mistake("batchinference.dev/v1\n", "batchinference.dev/v1beta1\n",
                               says="'batchinference.dev/v1beta1'?"),
    "capitals in the name": Mistake("name: My_Reviews", "name: my-reviews", "name: reviews",
                                    says="Write my-reviews"),
    "a digit at the beginning of the name": Mistake("name: 2reviews", "name: reviews2",
                                                    "name: reviews", says="write run-2reviews"),
    "NO as a name": Mistake("name: NO", "name: 'no'", "name: reviews", says="such as 'no'"),
    "a date as a name": Mistake("name: 2024-01-01", "name: run-2024-01-01", "name: reviews",
                                says="Write run-2024-01-01"),
    "a long name": Mistake(f"name: {'r' * 64}", f"name: {'r' * 40}", "name: reviews",
                           says="Remove 24 characters"),
    "no read": Mistake("", "  read:\n    format: csv\n    paths: [./reviews.csv]\n",
                       says="Add read: {format: csv, paths:"),
    "input": Mistake("  input:", "  read:", says="'read'"),
    "output": Mistake("  output:", "  write:", says="'write'"),
    "no output path": Mistake("", "    path: ./out\n", says="Add path: ./"),
    "path in read": Mistake("path: ./reviews.csv", "paths: [./reviews.csv]"),
    "a path as read": Mistake(
        "read: ./reviews.csv\n", "read: {format: csv, paths: [./reviews.csv]}\n",
        "read:\n    format: csv\n    paths: [./reviews.csv]\n",
        says="read: {format: csv, paths: [./reviews.csv]}",
    ),
    "a path as write": Mistake(
        "write: ./out\n", "write: {format: parquet, path: ./out}\n",
        "write:\n    format: parquet\n    path: ./out\n",
        says="write: {format: parquet, path: ./out}",
    ),
    "a list without brackets": Mistake(
        "paths: ./reviews.csv, ./reviews.csv", "paths: [./reviews.csv, ./reviews.csv]",
        "paths: [./reviews.csv]", says="[./reviews.csv, ./reviews.csv]",
    ),
    "no paths": Mistake("paths: []", "paths: [./reviews.csv]", says="paths: ["),
    "null as a path": Mistake("[null]", "[./reviews.csv]", says="Give it a value"),
    "a misspelled field": Mistake("batchsize", "batchSize"),
    "a field at the wrong level": Mistake("      batchSize: 32", "    batchSize: 32",
                                          says="spec.steps[1]. Move it"),
    "columns as dedupe": _step("dedupe: [text]", "dedupe: true", "Write true"),
    "cache: true": _step("cache: true", "cache: {path: ./cache}"),
    "dedupe of code": Mistake(
        "python: {callable: 'steps:clean'}\n    dedupe: true", "python: {callable: 'steps:clean'}",
        FILTER, says="is for a model",
    ),
    "schema of decode": Mistake(
        "decode: {column: text, output: made, format: json, schema: {label: string}}",
        "decode: {column: text, output: made, format: json, fields: {label: string}}", FILTER,
        says="'fields'",
    ),
    "device": _step("device: cuda", "resources: {gpu: 1}"),
    "npu": _step("resources: {npu: 1}", "resources: {custom: {NPU: 1}}", "{NPU: 1}"),
    "head: 8Gi": _added("cluster: {head: 8Gi}", "cluster: {head: {memory: 8Gi}}", "{memory: 8Gi}"),
    "gpus": _step("gpus: 1", "resources: {gpu: 1}"),
    "num_gpus": _step("resources: {num_gpus: 1}", "resources: {gpu: 1}", "'gpu'"),
    "concurrency": _step("concurrency: {max: 4}", "replicas: {max: 4}", "'replicas'"),
    "image": _added("image: me/image:1", "cluster: {image: 'me/image:1'}", "cluster: {image: ...}"),
    "limit in read": Mistake(
        "[./reviews.csv]\n    limit: 10", "[./reviews.csv]\n    options: {limit: 10}",
        "[./reviews.csv]", says="options: {limit: ...}",
    ),
    "where": Mistake("where: len", "filter: len", says="'filter'"),
    "map": Mistake("map: {callable: 'steps:clean'}",
                   "python: {callable: 'steps:clean', method: map}", FILTER),
    "sort": Mistake("sort: [n]", FILTER, says="with the output"),
    "shuffle": Mistake("shuffle: true", FILTER, says="Set shuffle: files in read.options"),
    "a column that an earlier step drops": _later("dropColumns: [n]", "move that step behind"),
    "a column that an earlier step renames": _later("renameColumns: {n: k}", "Name it 'k' here"),
    "two misspelled columns": _later("filter: txt > n", "'text'?\nspec.steps[1].filter", "k"),
    "pictures by their paths": _later("decode: {column: text, format: image}", "to manifest"),
    "a misspelled step": Mistake("fliter: len", "filter: len", says="'filter'"),
    "no action": Mistake("  - name: long\n", STEP, says="Add one of"),
    "two actions": Mistake(f"{FILTER}\n    dropColumns: [n]",
                           f"{FILTER}\n  - name: drop\n    dropColumns: [n]", FILTER,
                           says="Move dropColumns"),
    "the same name twice": Mistake("name: long", "name: other", "name: embed", says="Rename one"),
    "no name of a step": Mistake("  - filter: len", "  - name: my-name\n    filter: len",
                                 "  - name: long\n    filter: len", says="name: my-name"),
    "a column without brackets": Mistake("dropColumns: n", "dropColumns: [n]", FILTER, says="[n]"),
    "a misspelled column that is selected": Mistake(
        "selectColumns: [tet]", "selectColumns: [text]", FILTER, says="selectColumns: it names"
    ),
    "a list of new names": Mistake("renameColumns: [n, k]", "renameColumns: {n: k}", FILTER,
                                   says="{OLD: NEW}"),
    "inputs as a list": Mistake("inputs: [text]", "inputs: {text: text}", says="{text: COLUMN}"),
    "inputs of another task": Mistake("{image: text}", "{text: text}", says="{text: COLUMN}"),
    "an unknown input": Mistake("{review: text}", "{text: text}", says="Write inputs: {text: t"),
    "outputs": Mistake("outputs: e", "output: e", says="'output'"),
    "prompt for embeddings": Mistake("output: embedding\n      prompt: '{text}'",
                                     "output: embedding", says="text-generation"),
    "batchSize: 0": _step("batchSize: 0", "batchSize: 32", "such as 32"),
    "an octal number": _step("batchSize: 010", "batchSize: 10", "Write 10"),
    "batchSize: large": _step("batchSize: large", "batchSize: 32", "such as 32"),
    "replicas: 4": _step("replicas: 4", "replicas: {min: 4, max: 4}"),
    "replicas: '4'": _step("replicas: '4'", "replicas: {min: 4, max: 4}"),
    "limits": _step("resources: {limits: {cpu: 1}}", "resources: {cpu: 1}", "themselves"),
    "minReplicas": _step("replicas: {minReplicas: 1}", "replicas: {min: 1}", "'min'"),
    "min above max": _step("replicas: {min: 4, max: 2}", "replicas: {min: 4, max: 4}",
                           "Set max to 4"),
    "memory: 4": _step("resources: {memory: 4}", "resources: {memory: 4Gi}", "4Gi"),
    "memory: 4GB": _step("resources: {memory: 4GB}", "resources: {memory: 4Gi}", "4Gi"),
    "memory: 4G B": _step("resources: {memory: 4G B}", "resources: {memory: 4Gi}", "4Gi"),
    "cpu: 500 m": _step("resources: {cpu: 500 m}", "resources: {cpu: 500m}", "500m"),
    "cpu: half": _step("resources: {cpu: half}", "resources: {cpu: 0.5}", "0.5"),
    "gpu: A100": _step("resources: {gpu: A100}", "resources: {gpu: 1, acceleratorType: A100}",
                       "gpu: 1, and acceleratorType: A100"),
    "gpu: true": _step("resources: {gpu: true}", "resources: {gpu: 1}", "Write 1"),
    "a map as env": _added("cluster: {env: {A: b}}", "cluster: {env: [{name: A, value: b}]}",
                           "[{name: NAME, value: TEXT}]"),
    "KEY=VALUE as env": _added("cluster: {env: ['A=b']}", "cluster: {env: [{name: A, value: b}]}",
                               "Write {name: NAME, value: TEXT}"),
    "a number as the value of a variable": _added(
        "cluster: {env: [{name: A, value: 1}]}", "cluster: {env: [{name: A, value: '1'}]}",
        "in quotes",
    ),
    "secretRef in env": _added(
        "cluster: {env: [{name: A, valueFrom: {secretRef: {name: s, key: k}}}]}",
        "cluster: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}",
        "secretKeyRef",
    ),
    "a number of workers": _added("cluster: {workers: 4}", "cluster: {workers: {min: 4, max: 4}}",
                                  "{min: 4, max: 4}"),
    "a name as a pull secret": _added("cluster: {imagePullSecrets: [s]}",
                                      "cluster: {imagePullSecrets: [{name: s}]}", "Write {name"),
    "packages in the job": _added("requirements: [numpy]", "cluster: {image: 'me/image:1'}",
                                  "cluster.image"),
    "a number as errors": _added("errors: 10", "errors: {maxRows: 10}"),
    "a percentage": _added("errors: {maxPercent: 5%}", "errors: {maxPercent: 5}", "Write 5"),
    "a percentage of rows": _added("errors: {maxRows: 1%}", "errors: {maxPercent: 1}",
                                   "maxPercent: 1"),
    "a percentage as errors": _added("errors: 1%", "errors: {maxPercent: 1}"),
    "150 percent": _added("errors: {maxPercent: 150}", "errors: {maxPercent: 100}", "Write 100"),
    "a number as retry": _added("retry: 3", "retry: {maxAttempts: 3}"),
    "a notification to nobody": _added("notifications: [{name: a}]", "errors: {}", "urlEnv: VAR"),
    "queue": _added("queue: a", "cluster: {queueName: a}", "cluster: {queueName: ...}"),
    "backoffLimit": _added("backoffLimit: 3", "retry: {maxAttempts: 4}", "retry: {maxAttempts: "),
    "max in retry": _added("retry: {max: 3}", "retry: {maxAttempts: 3}", "'maxAttempts'"),
    "a duration as deadlines": _added("deadlines: 1h", "deadlines: {total: 1h}"),
    "a duration as ttl": _added("ttl: 7d", "ttl: {afterFinished: 7d}"),
    "a number as ttl": _added("ttl: 7", "ttl: {afterFinished: 7d}"),
    "a duration without a unit": _added("deadlines: {total: 3600}", "deadlines: {total: 1h}", "1h"),
    "a time as a duration": _added("deadlines: {total: 1:30}", "deadlines: {total: 1h30m}",
                                   '"1h30m" for 1:30'),
    "part of an hour": _added("deadlines: {total: 1.5h}", "deadlines: {total: 1h30m}", "1h30m"),
    "a duration in words": _added("deadlines: {total: 2 hours}", "deadlines: {total: 2h}", "2h"),
    "timeout": _added("timeout: {total: 1h}", "deadlines: {total: 1h}", "'deadlines'"),
    "suspend: 'yes'": _added("suspend: 'yes'", "suspend: true", "true"),
    "a map as parameters": _added("parameters: {day: x}", "parameters: [{name: day, value: x}]",
                                  "[{name: NAME, value: TEXT}]"),
    "a capital in a parameter": _added("parameters: [{name: Day, value: x}]",
                                       "parameters: [{name: day, value: x}]", "Write day"),
    "default of a parameter": _added("parameters: [{name: day, default: x}]",
                                     "parameters: [{name: day, value: x}]", "'value'"),
    "a parameter that is not declared": Mistake(
        "['{{ params.kind }}.csv']", "['{{ params.kind }}.csv']\n  parameters:\n"
        "  - name: kind\n    value: ./reviews", "[./reviews.csv]",
        says="parameters: [{name: kind, value: TEXT}]",
    ),
    "a parameter without params": Mistake(
        "['{{ kind }}.csv']\n  parameters: [{name: kind, value: ./reviews}]",
        "['{{ params.kind }}.csv']\n  parameters: [{name: kind, value: ./reviews}]",
        "[./reviews.csv]", says="{{ params.kind }}",
    ),
    "a parameter without quotes": Mistake(
        "[{{ params.kind }}]\n  parameters: [{name: kind, value: ./reviews.csv}]",
        "['{{ params.kind }}']\n  parameters: [{name: kind, value: ./reviews.csv}]",
        "[./reviews.csv]", says="paths: ['{{ params.kind }}']",
    ),
    "a parameter in cluster": _added(
        "cluster: {image: '{{ params.a }}'}\n  parameters: [{name: a, value: b}]",
        "cluster: {image: b}", "Write the value itself",
    ),
    "a gate with two sizes": _added("gate: {rows: 10, percent: 5, expect: mean(n) > 1}",
                                    "gate: {rows: 10, expect: mean(n) > 1}", "Remove one of them"),
    "a percentage in a gate": _added("gate: {rows: 10%, expect: mean(n) > 1}",
                                     "gate: {percent: 10, expect: mean(n) > 1}", "percent: 10"),
    "avg in a gate": _added("gate: {rows: 10, expect: avg(n) > 1}",
                            "gate: {rows: 10, expect: mean(n) > 1}", "Write mean(n) > 1"),
    "AND in a gate": _added("gate: {rows: 9, expect: mean(n) > 1 AND max(n) > 3}",
                            "gate: {rows: 9, expect: mean(n) > 1 and max(n) > 3}", "1 and max(n)"),
    "9.5% in a gate": _added("gate: {rows: 9, expect: fraction(n > 1) > 9.5%}",
                             "gate: {rows: 9, expect: fraction(n > 1) > 0.095}", "> 0.095"),
    "a row in a gate": _added("gate: {rows: 10, expect: n > 1}",
                              "gate: {rows: 10, expect: mean(n) > 1}", "mean"),
    "a gate without a condition": _added("gate: {rows: 10, expect: mean(n)}",
                                         "gate: {rows: 10, expect: mean(n) > 1}", "mean(n) > "),
    "a text as a gate": _added("gate: mean(n) > 1", "gate: {rows: 100, expect: mean(n) > 1}"),
    "sum in a gate": _added("gate: {rows: 10, expect: sum(n) > 1}",
                            "gate: {rows: 10, expect: mean(n) > 1}", "count, fraction, mean"),
    "count(*) in a gate": _added("gate: {rows: 10, expect: count(*) >= 10}",
                                 "gate: {rows: 10, expect: count(id is not None) >= 10}",
                                 "count(COLUMN is not None) >= 10"),
    "if": _step("if: n > 1", "when: n > 1", "'when'"),
    "= in when": _step("when: n = 1", "when: n == 1", "n == 1"),
    "a result of the step in when": _step("when: embedding is None", "when: text is not None",
                                          "a result of this step. Use one of id"),
    "a number as a schedule": _schedule("30", says="30 2 * * *"),
    "@daily": _schedule('"@daily"', '"0 0 * * *"'),
    "a schedule with seconds": _schedule('"0 30 2 * * *"'),
    "a schedule with four fields": _schedule('"30 2 * *"', says="30 2 * * MON-FRI"),
    "minute 60": _schedule('"60 2 * * *"', says="0 to 59"),
    "a time of day": _schedule('"2:30"'),
    "a schedule that begins with *": _schedule("* 2 * * *", '"* 2 * * *"', says="'* 2 * * *'"),
    "CRON_TZ": _schedule('"TZ=UTC 30 2 * * *"', '"30 2 * * *"\n  timeZone: UTC', "timeZone: UTC"),
    "hours around midnight": _schedule('"22-45 22-4 * * *"', '"22-45 22-23,0-4 * * *"'),
    "@every 6h": _schedule('"@every 6h"', '"0 */6 * * *"'),
    "a day that no month has": _schedule('"0 0 31 2 *"', says="a day that the month has"),
    "an offset as the time zone": _schedule(
        '"30 2 * * *"\n  timeZone: UTC+2', '"30 2 * * *"\n  timeZone: Europe/Berlin',
        says="such as Europe/Berlin",
    ),
    "a zone with a sign": _schedule('"30 2 * * *"\n  timeZone: GMT+1', says="such as Europe/"),
    "a city in small letters": _schedule('"30 2 * * *"\n  timeZone: new york', says="/New_York"),
    "a template without a spec": Mistake(
        "template:\n      read", "template:\n    spec:\n      read", base=SCHEDULE,
        says="template: {spec: {...}}",
    ),
    "a city as the time zone": _schedule(
        '"30 2 * * *"\n  timeZone: Berlin', '"30 2 * * *"\n  timeZone: Europe/Berlin',
        says="Europe/Berlin",
    ),
    "a schedule of another kind": Mistake(
        "kind: BatchInference\n", "kind: BatchInferenceSchedule\n", base=SCHEDULE,
        says="Write kind: BatchInferenceSchedule",
    ),
}  # fmt: skip
