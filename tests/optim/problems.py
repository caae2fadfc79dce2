"""A small regression that gradient steps are taken on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.optim import FlatAdam, FlatParameters, GradientStep


class Regression:
    """A two-layer network on flat parameters and its loss; made alike each time.

    The loss has a coefficient in a buffer, as PPO has its clipping interval. ``others`` is how many
    parameters, of no concern to the loss or the optimiser, share the flat storage.
    """

    def __init__(self, *, learning_rate: float = 1e-2, others: int = 0) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        self.coefficient = torch.tensor(1.0)
        self.others = nn.Parameter(torch.full((others,), 7.0))
        self.parameters = FlatParameters({"all": self.model.parameters(), "others": [self.others]})
        self.optimizer = FlatAdam(*self.parameters.select("all"), learning_rate=learning_rate)
        self.batch = {"observation": torch.randn(32, 3), "target": torch.randn(32)}

    def loss(self, minibatch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        prediction = self.model(minibatch["observation"]).squeeze(-1)
        error = self.coefficient * (prediction - minibatch["target"]).square().mean()
        approx_kl = minibatch["target"].detach().max()
        return error, {"error": error.detach(), "approx_kl": approx_kl}

    def step(
        self,
        *,
        norm: float | None = 0.5,
        compile: bool = False,
        max_kl: float | None = None,
        pieces: int = 1,
    ) -> GradientStep:
        return GradientStep(
            self.loss,
            self.optimizer,
            max_gradient_norm=norm,
            compile=compile,
            max_kl=max_kl,
            pieces=pieces,
        )

    def run(self, step: GradientStep, count: int = 6) -> Tensor:
        """Take steps on minibatches of 8, and return their metrics ``[count, metrics]``."""
        order = torch.Generator().manual_seed(1)
        return torch.stack(
            [step(self.batch, torch.randperm(32, generator=order)[:8]) for _ in range(count)]
        )
