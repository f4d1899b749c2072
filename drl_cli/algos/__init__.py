"""The algorithms: one module each, found by its name."""
