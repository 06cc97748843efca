"""The local web page of the command `ui`, with live progress, failed rows, and reports of jobs.

`server` receives requests, `site` answers them, and `pages` renders HTML. Data in outputs is
untrusted: every value is escaped, and nothing is requested from an address in an output."""
