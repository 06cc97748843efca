"""Inputs that other tools read wrongly without saying so, and what each tool makes of them.

    case        what a case is: its input, its job, and what is right
    verdict     right, refused, WRONG or not supported, from what a tool did
    product     runs the job of a case with BatchInference
    peers       the few lines that a user of another tool writes for the same input
    cases       the cases, by topic; those that are only data in YAML (yaml_cases)
    page        the table of docs/contributing/traps.md

`python -m traps` runs all cases (`make traps`). tests/pipeline/data/test_traps.py runs them through
BatchInference alone, without Ray.
"""
