"""The command line, ``rl-training``."""

from rl_training.cli.commands import main, parse_train, recipe_main

__all__ = ["main", "parse_train", "recipe_main"]
