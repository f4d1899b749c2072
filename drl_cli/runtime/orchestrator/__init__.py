"""The orchestrator: the main loop, and the parts that decide which call it makes next."""
