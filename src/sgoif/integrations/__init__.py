"""Other libraries' ways of asking for what we compute: one library per file, imported only there."""
