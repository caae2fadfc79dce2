"""Algorithms, one per file."""

from rl_training.garbage import import_module

# All of them need it: so what is large is imported here, without garbage collection.
import_module("rl_training.workflows")
