"""Scores with intervals, baselines, and comparisons; no torch."""
