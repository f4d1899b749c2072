"""Who does what: plain classes that answer calls."""
