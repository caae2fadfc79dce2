"""``python -m rl_training.cli`` is ``rl-training``."""

from rl_training.cli.commands import main

if __name__ == "__main__":
    raise SystemExit(main())
