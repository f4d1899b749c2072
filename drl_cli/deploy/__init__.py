"""Act with a trained policy: load it, export it, and record videos."""
