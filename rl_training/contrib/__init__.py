"""Algorithms with a weaker promise."""
