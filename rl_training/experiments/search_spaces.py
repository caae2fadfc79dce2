"""The search spaces of the library's algorithms, in the names of their configurations.

Ranges are those in which published settings lie, for vector observations and budgets up to a
million steps. A preset's own value is always in its space, even where it lies outside of these.
"""

from __future__ import annotations

from rl_training.experiments.search_space import Dimension, between, choice, logarithmic

_NETWORKS = choice([64, 64], [128, 128], [256, 256], [400, 300])
_DISCOUNT = choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)

_ON_POLICY: dict[str, Dimension] = {
    "algorithm.learning_rate": logarithmic(1e-5, 5e-3),
    "algorithm.num_steps": choice(32, 64, 128, 256, 512, 1024),
    "algorithm.minibatch_size": choice(32, 64, 128, 256, 512),
    "algorithm.discount": _DISCOUNT,
    "algorithm.gae_lambda": choice(0.8, 0.9, 0.95, 0.98, 1.0),
    "algorithm.clip_epsilon": choice(0.1, 0.2, 0.3),
    "algorithm.entropy_coefficient": choice(0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    "algorithm.max_gradient_norm": choice(None, 0.3, 0.5, 1.0, 5.0),
    "model.hidden_sizes": _NETWORKS,
    "model.activation": choice("tanh", "relu"),
}
_EPOCHS = {"algorithm.num_epochs": choice(1, 3, 5, 10, 20)}
_PHASES: dict[str, Dimension] = {
    "algorithm.policy_iterations": choice(2, 4, 8, 16, 32),
    "algorithm.auxiliary_epochs": choice(1, 3, 6, 9),
    "algorithm.auxiliary_learning_rate": logarithmic(1e-5, 5e-3),
    "algorithm.clone_coefficient": choice(0.3, 1.0, 3.0, 10.0),
}
_POLICY_PHASE: dict[str, Dimension] = {
    "algorithm.policy_epochs": choice(1, 2, 4, 8),
    "algorithm.value_epochs": choice(1, 2, 4, 8),
}
_MEMORY: dict[str, Dimension] = {
    # Minibatches are of whole sequences.
    "algorithm.num_steps": choice(32, 64, 128, 256),
    "algorithm.minibatch_size": choice(256, 512),
    "algorithm.memory_size": choice(32, 64, 128, 256),
}
_OFF_POLICY: dict[str, Dimension] = {
    "algorithm.learning_rate": logarithmic(1e-5, 1e-2),
    "algorithm.minibatch_size": choice(32, 64, 128, 256, 512),
    "algorithm.discount": _DISCOUNT,
    "algorithm.train_every": choice(1, 4, 16, 64, 256),
    "algorithm.gradient_steps_per_step": choice(0.25, 0.5, 1.0, 2.0),
    "model.hidden_sizes": _NETWORKS,
}
_MOVING_TARGETS = {"algorithm.tau": choice(0.001, 0.005, 0.01, 0.02, 0.05)}

SEARCH_SPACES: dict[str, dict[str, Dimension]] = {
    "ppo": {**_ON_POLICY, **_EPOCHS},
    "ppg": {**_ON_POLICY, **_PHASES, **_POLICY_PHASE},
    "recurrent_ppo": {**_ON_POLICY, **_EPOCHS, **_MEMORY},
    # Both epochs stay: policy and value function share a network, and so their epochs.
    "recurrent_ppg": {**_ON_POLICY, **_PHASES, **_MEMORY},
    "dqn": {
        **_OFF_POLICY,
        "algorithm.target_update_interval": choice(10, 100, 250, 500, 1000, 5000),
        "algorithm.exploration_fraction": between(0.02, 0.5),
        "algorithm.exploration_final": between(0.01, 0.2),
        "algorithm.double": choice(False, True),
        "algorithm.dueling": choice(False, True),
    },
    "sac": {
        **_OFF_POLICY,
        **_MOVING_TARGETS,
        "algorithm.entropy_coefficient": choice(None, 0.01, 0.05, 0.2),
    },
    "td3": {
        **_OFF_POLICY,
        **_MOVING_TARGETS,
        "algorithm.exploration_deviation": between(0.02, 0.5),
        "algorithm.exploration_noise": choice("normal", "ornstein_uhlenbeck"),
        "algorithm.target_policy_noise": between(0.0, 0.5),
        "algorithm.policy_delay": choice(1, 2, 3),
    },
}
"""By the algorithm's name."""
