"""How cost grows, measured on a small machine, and what follows for a large one."""
