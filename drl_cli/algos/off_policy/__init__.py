"""Off-policy actor-critic algorithms, most of them for continuous actions: one file for each algorithm."""
