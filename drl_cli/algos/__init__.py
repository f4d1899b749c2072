"""The algorithms. Each algorithm is one module, and the module's name is the algorithm's name."""
