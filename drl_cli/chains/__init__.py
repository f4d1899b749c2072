"""Records the tensor operations of whole updates, and repeats a record in place of the update's Python code."""
