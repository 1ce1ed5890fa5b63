"""From a case to its record: one file per kind of case."""
