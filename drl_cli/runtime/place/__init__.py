"""Where roles run: in this process or on Ray; the only room with Ray."""
