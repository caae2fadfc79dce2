"""What a run is: `TrainConfig` and its groups, from YAML and back. Imports no torch."""

from rl_training.config.build import (
    build_config,
    config_from_dict,
    config_hash,
    config_to_dict,
    dump_yaml,
    load_config,
    replace_config,
    train_config_class,
    untyped,
    validate,
)
from rl_training.config.coercion import ConfigKeyError, require, require_directory
from rl_training.config.groups import (
    CheckpointConfig,
    EnvConfig,
    EvaluationConfig,
    ModelConfig,
    TrackingConfig,
    TrainConfig,
)
from rl_training.config.hyperparameters import Hyperparameters
from rl_training.config.presets import (
    find_manifest,
    find_preset,
    manifest_paths,
    preset_for,
    preset_paths,
)

__all__ = [
    "CheckpointConfig",
    "ConfigKeyError",
    "EnvConfig",
    "EvaluationConfig",
    "Hyperparameters",
    "ModelConfig",
    "TrackingConfig",
    "TrainConfig",
    "build_config",
    "config_from_dict",
    "config_hash",
    "config_to_dict",
    "dump_yaml",
    "find_manifest",
    "find_preset",
    "load_config",
    "manifest_paths",
    "preset_for",
    "preset_paths",
    "replace_config",
    "require",
    "require_directory",
    "train_config_class",
    "untyped",
    "validate",
]
