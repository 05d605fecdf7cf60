"""The HTTP side of a replica: REST for people and scripts, health for the platform, metrics, a read-only page."""
