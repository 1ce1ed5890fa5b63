"""From records to pages: one file per kind of case, and the pages that show several."""
