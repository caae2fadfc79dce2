"""What PPG's auxiliary phase learns from, in shuffled minibatches on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rl_training.data.phase_data import Part, PhaseData
from rl_training.data.rollout_buffer import steps_of


class PhaseSamples:
    """The samples that a `PhaseData` holds, and what is computed of them.

    Args:
        phase: holds them.
        unit: so many of them, which follow each other in a rollout, are drawn as one.
        device: where they are computed with.
        whole: put all of them there at once, instead of each minibatch when it is taken.
    """

    def __init__(self, phase: PhaseData, *, unit: int, device: torch.device, whole: bool) -> None:
        self._unit, self._device, self._whole = unit, device, whole
        self._home = device if whole else torch.device("cpu")
        self._data = {key: value.to(self._home) for key, value in phase.joined().items()}
        self._places = phase.order(unit)

    def __len__(self) -> int:
        """Return how many are drawn in a pass, ``unit`` samples counted as one."""
        return len(self._places)

    def shuffled(
        self, pieces: int, generator: torch.Generator, *, at_most: int | None = None
    ) -> list[Tensor]:
        """Return the first ``at_most`` minibatches, indices ``[B]``, of a pass of ``pieces``."""
        permutation = torch.randperm(len(self), generator=generator)
        cuts = self._places[permutation].to(self._home).tensor_split(pieces)
        return [steps_of(rows, self._unit) for rows in cuts[:at_most]]

    def minibatch(self, indices: Tensor) -> tuple[Part, Tensor]:
        """Return what a gradient step on the samples ``indices`` takes: tensors, and their rows."""
        return minibatch_of(self._data, indices, None if self._whole else self._device)

    def keep(
        self,
        names: Sequence[str],
        compute: Callable[[Part], Sequence[Tensor]],
        parts: Sequence[Tensor],
    ) -> None:
        """Compute more of the samples, part by part, and keep it beside what there is of them.

        Args:
            names: of what ``compute`` returns.
            compute: of a part's samples ``[B, ...]``.
            parts: indices of samples ``[B]``; of those in none, zeros are kept.
        """
        order, count = torch.cat(list(parts)), len(self._data["value_target"])
        found = []
        for each in parts:
            samples = {k: v.to(self._device) for k, v in samples_of(self._data, each).items()}
            found.append(compute(samples))
        for name, pieces in zip(names, zip(*found, strict=True), strict=True):
            joined = torch.cat(pieces).to(order.device)
            all_of_them = joined.new_zeros(count, *joined.shape[1:])
            self._data[name] = all_of_them.index_copy_(0, order, joined)


def samples_of(data: Mapping[str, Tensor], indices: Tensor) -> Part:
    """Return the samples ``[B, ...]`` of what `PhaseData.joined` gave."""
    plain = {k: v for k, v in data.items() if k not in ("frames", "places")}
    samples = {k: v.index_select(0, indices) for k, v in plain.items()}
    if "frames" in data:
        frames, places = data["frames"], data["places"].index_select(0, indices)
        images = frames.index_select(0, places.flatten())
        samples["observation"] = images.view(len(places), -1, *frames.shape[2:])
    return samples


def minibatch_of(
    data: Mapping[str, Tensor], indices: Tensor, device: torch.device | None = None
) -> tuple[Part, Tensor]:
    """Return what a gradient step takes: tensors, and which of their rows.

    Args:
        data: what `PhaseData.joined` gave, and more of its kind.
        indices: of the samples.
        device: copy them, and nothing else, there; None: the data is there.
    """
    if "frames" not in data and device is None:
        return dict(data), indices
    samples = samples_of(data, indices)
    if device is not None:
        samples = {key: value.to(device) for key, value in samples.items()}
    return samples, torch.arange(len(indices), device=device or indices.device)
