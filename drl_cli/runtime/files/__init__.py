"""Write and read checkpoints, including the files of the replay."""
