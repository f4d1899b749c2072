"""Off-policy actor-critic algorithms, one file for each algorithm. Most of them need continuous actions."""
