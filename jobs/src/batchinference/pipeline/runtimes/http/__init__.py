"""Requests to an HTTP endpoint: request bodies, rate limit, retries and response handling."""

from __future__ import annotations

from batchinference.pipeline.runtimes.http.api import ApiAdapter, form_of
from batchinference.pipeline.runtimes.http.client import Endpoint
from batchinference.pipeline.runtimes.http.credentials import Credentials
from batchinference.pipeline.runtimes.http.errors import RequestFailed

__all__ = ["ApiAdapter", "Credentials", "Endpoint", "RequestFailed", "form_of"]
