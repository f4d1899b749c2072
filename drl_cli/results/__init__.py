"""What runs left behind, read and compared: a run's folder, curves, statistics, groups, tables, figures."""
