"""Neural structural obfuscation as programs of transforms on channel spaces."""
