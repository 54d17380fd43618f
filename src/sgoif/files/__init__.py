"""Files and where they lie: tables, fsspec locations, and sealed files that no code runs in."""
