"""What rows become: files and tables."""
