"""Jobs: what runs in the worker processes. Nothing here is imported by a notebook's kernel."""
