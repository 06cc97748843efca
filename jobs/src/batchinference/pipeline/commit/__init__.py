"""The commit protocol: leases, attempts, manifests and snapshots. No Ray, no file formats."""
