"""The main loop of a run, and the classes that decide which call to a role is next."""
