"""The product on a real cluster: Helm, kubectl, waits, disruptions."""
