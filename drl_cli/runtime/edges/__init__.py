"""Edges: the classes through which the orchestrator calls the other roles."""
