"""The only loop, and what it consults before it issues a call."""
