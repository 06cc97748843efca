"""The commit protocol: leases, snapshots, manifests and completed rows. No Ray, no file formats."""
