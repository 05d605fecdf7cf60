"""Placement against capacity traces in virtual time. `python -m tests.placement` plays them all."""
