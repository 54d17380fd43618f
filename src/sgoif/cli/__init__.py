"""The command line: ``sgoif scan``, ``issues``, ``check`` and the rest, one file per command.

``main`` parses, maps errors to exit codes and imports a command's file only when it is called. Every command has a
function that finds the answer, and one that shows it; ``--json`` prints the same answer as one document.
"""
