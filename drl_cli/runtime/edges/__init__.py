"""Edges: how the orchestrator reaches roles that are several processes, or that may fail."""
