"""Datasets of recorded steps: formats, facts, and writing. Knows no role and no algorithm."""
