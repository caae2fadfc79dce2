"""The command line, ``rl-training``, and the names its users start with.

Those of the library's other parts are imported on first use: the command line answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.cli.commands import main, parse_train, recipe_main

if TYPE_CHECKING:
    from rl_training.config import TrainConfig, load_config
    from rl_training.runtime.run import make_run_dir

__all__ = ["TrainConfig", "load_config", "main", "make_run_dir", "parse_train", "recipe_main"]


def __getattr__(name: str) -> Any:
    """Return a name that the package itself exports (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import rl_training

    return getattr(rl_training, name)
