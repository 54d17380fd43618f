"""The per-step machinery: what happens when, at what price, and where scores go."""
