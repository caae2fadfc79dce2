"""Storage of experience."""
