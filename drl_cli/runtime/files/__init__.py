"""Files: checkpoints, and the replay's files in them."""
