"""The commit protocol: leases, passes, manifests and snapshots. No Ray, no file formats."""
