"""White-box watermarks: embed a message by training, read it back with the owner's key."""
