"""The algorithms. Each has one module; the module's name is the algorithm's name."""
