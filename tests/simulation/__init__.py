"""Deterministic simulation: the real loops and the real SQL, everything around them a seeded model. See `run`."""
