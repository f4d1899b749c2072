"""How one role is reached as many, or through failures."""
