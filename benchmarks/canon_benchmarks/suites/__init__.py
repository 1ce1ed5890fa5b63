"""Canon's suites, as TOML files."""
