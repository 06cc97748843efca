"""The command `verify`."""

import sys

from batchinference.api.targets import check_address
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error
from batchinference.cli.installed_packages import outputs_are_readable
from batchinference.cli.printing import Format, echo, print_data
from batchinference.cli.verbosity import note
from batchinference.pipeline.errors import JobFailure, redact

_EXITS = {"proven": exits.SUCCESS, "unfinished": exits.UNFINISHED, "notProven": exits.JOB_FAILED}


def verify_output(output: str, *, quick: bool, trusted: bool, form: Format) -> int:
    """Verify an output, print the report and return the exit code."""
    with exit_on_cluster_error("verify"):
        check_address(output)
    if not outputs_are_readable():
        return exits.BAD_INPUT
    from batchinference.cli.verification_report import show
    from batchinference.pipeline.storage.location import Location
    from batchinference.pipeline.verify.verify import verify

    if sys.stderr.isatty():
        note(f"reading {output} and its input", err=True)
    try:
        proof = verify(Location(output), quick=quick, trusted=trusted)
    except JobFailure as failure:
        echo(f"verify: {failure.message}", err=True)
        return exits.code_of(failure.reason)
    except OSError as error:
        echo(f"verify: '{output}' cannot be read: {redact(str(error))}", err=True)
        return exits.JOB_FAILED
    show(proof) if form is Format.TEXT else print_data(proof.as_json(), form)
    return _EXITS[proof.result.value]
