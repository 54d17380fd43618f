"""What people decide about examples: who looks at what, how far they agree, and what becomes of the data."""
