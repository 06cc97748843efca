"""The edge: kopf, the API server and the dashboards of Ray clusters."""
