"""An algorithm into a checkpoint and out of it, apart from any run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rl_training.arguments import require_trusted_modules, with_number_of
from rl_training.config import config_from_dict, config_to_dict, replace_config
from rl_training.errors import UserError
from rl_training.runtime import checkpoint as checkpoints
from rl_training.runtime.checks import fitting
from rl_training.runtime.manifest import read_manifest

if TYPE_CHECKING:
    from rl_training.algorithm import Algorithm
    from rl_training.algorithm_core import Networks

_FILES = (
    *(".zip", ".tar", ".gz", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"),
    *(".safetensors", ".npz", ".h5", ".onnx"),
)
"""Suffixes of files in which other libraries keep models."""
AnyAlgorithm = TypeVar("AnyAlgorithm", bound="Algorithm")


def save(algorithm: Algorithm, path: Path, *, policy_only: bool, overwrite: bool) -> Path:
    """Write ``algorithm`` as the checkpoint directory ``path``."""
    if not policy_only:
        algorithm.require_usable()
    if path.suffix.lower() in _FILES:
        raise UserError(
            f"{path} names a file, and a checkpoint is a directory: leave out "
            f"{path.suffix!r}, and load it by the same name."
        )
    if path.exists() and not overwrite:
        raise UserError(
            f"{path} exists already: take another name, or overwrite=True for a checkpoint there."
        )
    config = config_to_dict(algorithm.config)
    policy = algorithm.policy_state()
    if policy_only:
        return checkpoints.save_policy(
            path, step=algorithm.global_step, policy=policy, config=config
        )
    state = {"training": {"algorithm": algorithm.state_dict()}}
    return checkpoints.save_alone(
        path, step=algorithm.global_step, state=state, policy=policy, config=config
    )


def load(
    cls: type[AnyAlgorithm],
    path: Path,
    *,
    best: bool = False,
    env: Any,
    networks: Networks | None,
    changes: Mapping[str, Any],
    trust_modules: bool = False,
) -> AnyAlgorithm:
    """Return what `save`, or a run, wrote; see `Algorithm.load`."""
    directory = checkpoints.resolve_checkpoint(path, best=best)
    policy = checkpoints.load_policy(directory)
    config = config_from_dict(policy.config, source=str(directory))
    if config.algo != cls.name:
        raise UserError(f"{directory} holds a {config.algo!r} policy, not a {cls.name!r} one.")
    require_trusted_modules(config, trust=trust_modules, env=env)
    changes = with_number_of(env, changes)
    if changes:
        config = replace_config(config, **changes)
    algorithm = cls.restore(config, policy.state, env=env, networks=networks)
    if "state.json" in read_manifest(directory)["files"]:
        loaded = checkpoints.load_checkpoint(directory)
        with fitting(f"{directory} holds no training state"):
            state = loaded.state["training"]["algorithm"]
        algorithm.load_state_dict(state, fresh_environment=env is not None)
    else:
        algorithm._policy_alone = directory
    if env is not None:
        algorithm.environment  # noqa: B018  one that does not fit is refused here, not in learn
    algorithm._write_runs = "output_dir" in changes
    return algorithm


def warm_start(algorithm: Algorithm) -> None:
    """Give ``algorithm`` the parameters and statistics of its config's ``init_from``.

    Raises:
        UserError: no policy is there, it is damaged, or of another algorithm or model.
    """
    source = str(algorithm.config.init_from)
    policy = checkpoints.load_policy(checkpoints.resolve_checkpoint(source))
    algo = policy.config.get("algo")
    if algo != algorithm.name:
        raise UserError(
            f"init_from: {source} holds a {algo!r} policy, not a {algorithm.name!r} one."
        )
    algorithm.load_policy_state(policy.state)
