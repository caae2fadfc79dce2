"""Runs, checkpoints, loggers, callbacks, devices and seeds.

Names are imported on first use: torch only comes with what needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import (
        Callback,
        CheckpointCallback,
        EvaluationCallback,
        StopOnNoImprovement,
        StopOnReturn,
        TrainContext,
    )
    from rl_training.runtime.checkpoint import (
        CheckpointError,
        CheckpointWriteError,
        LoadedCheckpoint,
        LoadedPolicy,
        NoCheckpointError,
        digest,
        latest_intact,
        load_checkpoint,
        load_policy,
        resolve_checkpoint,
        save_alone,
        save_checkpoint,
        save_policy,
        verify,
    )
    from rl_training.runtime.devices import resolve_device, set_torch_threads
    from rl_training.runtime.loggers import JsonlLogger, Logger, TensorBoardLogger, WandbLogger
    from rl_training.runtime.progress import ProgressCallback
    from rl_training.runtime.run import (
        Run,
        create_training_run,
        make_run_dir,
        save_training_checkpoint,
        serialize_train_config,
    )
    from rl_training.runtime.seeding import generator, preserve_global_rng, seed_everything
    from rl_training.runtime.signals import StopSignals

_HOMES = {
    "callbacks": (
        "Callback",
        "CheckpointCallback",
        "EvaluationCallback",
        "StopOnNoImprovement",
        "StopOnReturn",
        "TrainContext",
    ),
    "checkpoint": (
        "CheckpointError",
        "CheckpointWriteError",
        "LoadedCheckpoint",
        "LoadedPolicy",
        "NoCheckpointError",
        "digest",
        "latest_intact",
        "load_checkpoint",
        "load_policy",
        "resolve_checkpoint",
        "save_alone",
        "save_checkpoint",
        "save_policy",
        "verify",
    ),
    "devices": ("resolve_device", "set_torch_threads"),
    "loggers": ("JsonlLogger", "Logger", "TensorBoardLogger", "WandbLogger"),
    "progress": ("ProgressCallback",),
    "run": (
        "Run",
        "create_training_run",
        "make_run_dir",
        "save_training_checkpoint",
        "serialize_train_config",
    ),
    "seeding": ("generator", "preserve_global_rng", "seed_everything"),
    "signals": ("StopSignals",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 (grouped by module)
    "Callback",
    "CheckpointCallback",
    "EvaluationCallback",
    "StopOnNoImprovement",
    "StopOnReturn",
    "TrainContext",
    "CheckpointError",
    "CheckpointWriteError",
    "LoadedCheckpoint",
    "LoadedPolicy",
    "NoCheckpointError",
    "digest",
    "latest_intact",
    "load_checkpoint",
    "load_policy",
    "resolve_checkpoint",
    "save_alone",
    "save_checkpoint",
    "save_policy",
    "verify",
    "resolve_device",
    "set_torch_threads",
    "JsonlLogger",
    "Logger",
    "TensorBoardLogger",
    "WandbLogger",
    "ProgressCallback",
    "Run",
    "create_training_run",
    "make_run_dir",
    "save_training_checkpoint",
    "serialize_train_config",
    "generator",
    "preserve_global_rng",
    "seed_everything",
    "StopSignals",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
