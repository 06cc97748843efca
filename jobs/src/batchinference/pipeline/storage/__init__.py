"""Where bytes are: locations, object stores, HTTP and retries. It knows nothing of jobs."""
