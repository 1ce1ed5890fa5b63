"""Find the redundancy that obfuscation must leave, and remove it."""
