"""The commit protocol: leases, snapshots, manifests and which rows are done. No Ray, no formats."""
