"""Presets: YAML to one frozen, checked object; notebook parameters."""
