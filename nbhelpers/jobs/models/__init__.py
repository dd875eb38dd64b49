"""Models and their inputs: the worker side only."""
