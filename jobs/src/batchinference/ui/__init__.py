"""A local web page over jobs: live progress, failed rows, and reports.

`site` answers requests, `server` receives them, and `pages` renders HTML. The page shows data of
other people's outputs and never trusts it: every value is escaped, and nothing is loaded or
requested from an address in an output.
"""
