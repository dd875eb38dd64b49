"""The run folder, and what starts, follows, stops and compares runs."""
