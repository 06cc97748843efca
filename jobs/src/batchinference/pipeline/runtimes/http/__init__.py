"""Models behind an HTTP endpoint: request bodies, client with a rate limit, and retries."""
