"""A trained policy for elsewhere: the policy directory alone, or one ONNX file."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithm import Algorithm
from rl_training.config import config_hash
from rl_training.envs.hybrid import is_hybrid
from rl_training.envs.masks import mask_columns
from rl_training.envs.normalize import EPSILON, ObservationNormalizer
from rl_training.errors import UserError
from rl_training.models.carried_state import zeroed_where
from rl_training.models.lstm import MEMORY
from rl_training.runtime import checkpoint as checkpoints
from rl_training.runtime.checkpoint_directory import is_one_checkpoint
from rl_training.runtime.files import writing_to
from rl_training.runtime.manifest import MANIFEST
from rl_training.version import __version__
from rl_training.workflows import load_algorithm

Format = Literal["safetensors", "onnx"]
OPSET = 18


def export_policy(
    path: str | PathLike[str],
    output: str | PathLike[str] | None = None,
    *,
    format: Format,
    best: bool = False,
    trust_modules: bool = False,
) -> Path:
    """Write the policy of a run or a checkpoint as a file of its own, and return it.

    ``safetensors`` is the policy directory, enough for ``rl-training eval`` and `Algorithm.load`.
    ``onnx`` is one file from raw observations ``[N, *shape]`` to the environment's actions, with
    normalisation, bounds and memory inside: what `Algorithm.predict` returns.

    Args:
        path: a run (its latest checkpoint), a checkpoint or a policy directory.
        output: the directory or the file; None: ``policy`` or ``policy.onnx`` in the run's
            directory, of one checkpoint ``<its name>_policy``; beside a checkpoint that is in no
            run.
        format: which.
        best: of a run, the checkpoint with the best evaluation.
        trust_modules: import the code that its config names ("module:Class").

    Raises:
        UserError: no policy is there, the extra ``export`` is missing, or the place cannot be
            written, or holds something.
    """
    if format == "onnx":
        _require_onnx()
    target = _beside(path, format, best=best) if output is None else Path(output)
    if target.exists():
        raise UserError(f"{target} exists already: give another --output, or remove it.")
    if format == "safetensors":
        source = checkpoints.resolve_checkpoint(path, best=best)
        policy = checkpoints.load_policy(source)
        step = int(policy.manifest["step"])
        with _writing(target):
            checkpoints.save_policy(target, step=step, policy=policy.state, config=policy.config)
        return target
    algorithm, _ = load_algorithm(Path(path), best=best, trust_modules=trust_modules, device="cpu")
    program = to_onnx(algorithm)
    with _writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        program.save(str(target))
    return target


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Let a refusal of the disk, such as a run's that is only to be read, say what helps."""
    try:
        with writing_to(target):
            yield
    except UserError as error:
        raise UserError(f"{error} --output PATH writes it elsewhere.") from error


def _beside(path: str | PathLike[str], format: Format, *, best: bool) -> Path:
    """Return where a policy goes when nobody says: never into a checkpoint, which holds nothing but
    what its manifest lists. A run's name is its latest policy's; one checkpoint's has its own.
    """
    name = "policy.onnx" if format == "onnx" else "policy"
    checkpoint = checkpoints.resolve_checkpoint(path, best=best).absolute()
    while (checkpoint.parent / MANIFEST).is_file():  # the policy directory of a checkpoint
        checkpoint = checkpoint.parent
    run, own = checkpoint.parent.parent, f"{checkpoint.name}_{name}"
    if (run / "config.yaml").is_file():
        target = run / (own if best or is_one_checkpoint(path) else name)
    else:
        target = checkpoint.with_name(own)
    try:
        return target.relative_to(Path.cwd())
    except ValueError:
        return target


def _require_onnx() -> None:
    try:
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise UserError('ONNX needs an extra: pip install "rl_training[export]".') from error


class ExportedPolicy(nn.Module):
    """`Algorithm.predict`, deterministic, in tensors alone."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        # The algorithm is no module: its networks become part of this one by themselves.
        self.networks = nn.ModuleDict(
            {name.replace(".", "_"): each for name, each in algorithm.modules.items()}
        )
        self._algorithm = algorithm
        self._normalize = _Normalize(algorithm.normalizer.observation)
        self._to_environment = _ToEnvironment(algorithm)

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions ``[N, *act]`` for raw observations ``[N, *shape]``."""
        action = self._algorithm.action(
            self._normalize(observation), deterministic=True, generator=None
        )
        taken: Tensor = self._to_environment(action)
        return taken


class ExportedMemoryPolicy(ExportedPolicy):
    """The same of a policy with memory: what it carries on goes in and comes out."""

    def forward(  # type: ignore[override]
        self, observation: Tensor, carried: dict[str, Tensor], episode_start: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions, and what to pass with the next observations.

        Args:
            observation: raw ``[N, *shape]``.
            carried: what came out at the step before; anything at the beginning.
            episode_start: bool ``[N]``: whose episode begins.
        """
        model: Any = self._algorithm.modules["model"]
        before = zeroed_where(carried, episode_start)
        action, _, _, after = model.act(
            self._normalize(observation),
            before[MEMORY],
            extra=model.extra(before),
            deterministic=True,
        )
        return self._to_environment(action), model.carried(action, after)


class _Normalize(nn.Module):
    """Raw observations to what the networks read; see `rl_training.envs.normalize`."""

    mean: Tensor
    scale: Tensor

    def __init__(self, normalizer: ObservationNormalizer | None) -> None:
        super().__init__()
        self._active = normalizer is not None
        if normalizer is not None:
            statistics = normalizer.statistics
            scale = np.sqrt(statistics.var + EPSILON)
            self.register_buffer("mean", torch.as_tensor(statistics.mean, dtype=torch.float64))
            self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float64))
            self._clip = normalizer.clip

    def forward(self, observation: Tensor) -> Tensor:
        if self._active:
            scaled = (observation.double() - self.mean) / self.scale
            observation = scaled.clamp(-self._clip, self._clip).float()
        return observation.float() if observation.dtype == torch.float64 else observation


class _ToEnvironment(nn.Module):
    """A policy's actions to the environment's; see `rl_training.envs.spaces.ActionMap`."""

    low: Tensor
    high: Tensor
    start: Tensor

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__()
        space: Any = algorithm.action_space
        if is_hybrid(space):
            raise UserError(f"ONNX has no actions with parts, and this policy's are {space}.")
        self._squash, self._scale = algorithm.squash_actions, algorithm.scale_actions
        self._discrete = not hasattr(space, "low")
        if self._discrete:
            start = np.array(getattr(space, "start", 0), space.dtype)
            self.register_buffer("start", torch.from_numpy(start))
            return
        self.register_buffer("low", torch.from_numpy(np.array(space.low)))
        self.register_buffer("high", torch.from_numpy(np.array(space.high)))
        self._integers = not self.low.is_floating_point()

    def forward(self, action: Tensor) -> Tensor:
        if self._discrete:
            return (action + self.start).to(self.start.dtype)
        scaled = self._squash or self._scale
        if scaled:
            unit = action.double()
            unit = (unit.tanh() if self._squash else unit) * 0.5 + 0.5
            low, high = self.low.double(), self.high.double()
            action = low + unit * (high - low + self._integers)
        if self._integers:
            whole = action.floor() if scaled else action.round()
            # Before the cast, which would wrap around.
            action = torch.minimum(torch.maximum(whole, self.low.double()), self.high.double())
        return torch.minimum(torch.maximum(action.to(self.low.dtype), self.low), self.high)


def to_onnx(algorithm: Algorithm) -> Any:
    """Return a policy as an ONNX program of `torch.onnx`, for any number of observations."""
    if algorithm.observation_layout.packed:
        raise UserError("ONNX takes no images among the parts of an observation yet.")
    space: Any = algorithm.observation_space
    count = 3  # any number but 0 and 1, which tracing would take for constants
    observation = torch.from_numpy(np.zeros((count, *space.shape), space.dtype))
    batch = {0: torch.export.Dim("batch")}
    model: Any = algorithm.modules.get("model")
    inputs: tuple[Any, ...] = (observation,)
    shapes: tuple[Any, ...] = (batch,)
    names, results = ["observation"], ["action"]
    policy: nn.Module = ExportedPolicy(algorithm)
    if hasattr(model, "initial_carried"):
        policy = ExportedMemoryPolicy(algorithm)
        carried = model.initial_carried(count)
        inputs += (carried, torch.ones(count, dtype=torch.bool))
        shapes += (dict.fromkeys(carried, batch), batch)
        names += [*carried, "episode_start"]
        results += [f"next_{key}" for key in carried]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            policy.eval(),
            inputs,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=names,
            output_names=results,
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(
        {
            **_mask_place(algorithm),
            "written_by": f"rl_training {__version__}",
            "algo": algorithm.config.algo,
            "env_id": algorithm.config.env_id,
            "step": str(algorithm.global_step),
            "config_sha256": config_hash(algorithm.config),
        }
    )
    return program


def _mask_place(algorithm: Algorithm) -> dict[str, str]:
    """Return where the mask of legal actions stands in an observation."""
    if algorithm.config.env.action_masks == "off":
        return {}
    columns = mask_columns(algorithm.raw_observation_space, algorithm.action_space).columns
    return {"action_mask_columns": f"{columns.start}:{columns.stop}"}
