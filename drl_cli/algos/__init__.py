"""The algorithms. Each is a module in a subpackage, such as value/dqn.py, and has the module's name."""
