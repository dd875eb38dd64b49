"""A trained model at work: ask, detect, compare, merge, export."""
