"""The commands and their options; what a command does is in the file of its name, one folder up."""
