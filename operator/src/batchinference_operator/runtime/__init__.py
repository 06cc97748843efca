"""The operator's I/O: kopf, the API server and the dashboards of Ray clusters."""
