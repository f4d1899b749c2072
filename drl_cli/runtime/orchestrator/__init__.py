"""The main loop of a run, and the classes that decide which role is called next."""
