"""Convert the torch code of a user's policy to a numpy program, so that workers and evaluations need no torch."""
