"""Our three jobs under simulation: their memory before they run."""
