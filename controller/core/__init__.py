"""Pure policy: values in, values out. No await, clock, randomness, logging, AWS or SQL."""
