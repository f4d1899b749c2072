"""Roles: the classes whose methods the orchestrator calls, one class for each kind of role."""
