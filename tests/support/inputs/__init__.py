"""Input files and tables that tests write, and how tests read them."""
