"""Access to bytes: locations, object stores, HTTP and retries. Independent of jobs."""
