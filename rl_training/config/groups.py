"""`TrainConfig` and its groups, each with its defaults and its own rules.

Each default stands here, or in the recipe for the algorithm's group, and nowhere else. The text
under a field is its help on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rl_training.config.coercion import ConfigKeyError, require
from rl_training.errors import nearest
from rl_training.registry import algorithm_class

_ENCODERS = ("auto", "mlp", "nature", "impala")
ATARI_TAG = "atari"
"""The tag that stands for ``env.atari.enabled``."""
_PART_ENCODERS = ("auto", "identity", "mlp", "embedding", "nature", "impala")
# Bounds far above what is of use, so that a slip of the keyboard is refused in one line instead of
# by running out of memory.
_WIDEST_LAYER = 65_536
_DEEPEST_NETWORK = 1000
_MOST_ENVIRONMENTS = 65_536
_MOST_THREADS = 1024
_LARGEST_CLIP = 1e6
_MOST_FRAMES = 10_000
_LARGEST_SCREEN = 1024


@dataclass(kw_only=True)
class ModelConfig:
    """The networks."""

    hidden_sizes: list[int] = field(default_factory=lambda: [64, 64])
    """Units of each hidden layer of an MLP."""
    critic_hidden_sizes: list[int] | None = None
    """The same of the value function or the critics; null: hidden_sizes."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """Non-linearity between the layers."""
    shared_trunk: bool = False
    """Policy and value function share their hidden layers."""
    orthogonal_init: bool = True
    """Orthogonal initial weights with the usual gains, instead of PyTorch's default."""
    encoder: str = "auto"
    """What turns an observation into features: "auto" ("nature" for images, "impala" for those too
    small for it, else "mlp"), "mlp", "nature", "impala", or your own as "module:Class"."""
    encoders: dict[str, str] = field(default_factory=dict)
    """Encoders of single parts of a Dict or Tuple observation, by key (nested ones with dots):
    "identity", "mlp", "embedding" (Discrete, MultiDiscrete), "nature", "impala" or
    "module:Class"."""
    feature_size: int | None = None
    """Units of an image encoder's dense layer; null: 512 for nature, 256 for impala."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """In what an image encoder computes; its weights and outputs are float32 either way."""
    channels_last: bool | None = None
    """Lay an image encoder's tensors out pixel by pixel instead of channel by channel; null: where
    it is faster: in float32, and of impala in bfloat16 too."""
    network: str | None = None
    """Your own actor-critic instead of the built one, as "module:Class": a subclass of the
    algorithm's own (rl_training.models.actor_critic)."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        _require_layers("model.hidden_sizes", self.hidden_sizes)
        _require_layers("model.critic_hidden_sizes", self.critic_hidden_sizes or [])
        if self.encoder not in _ENCODERS and ":" not in self.encoder:
            hint = nearest(self.encoder, _ENCODERS)
            message = (
                "model.encoder: expected auto, mlp, nature, impala or 'module:Class', "
                f"not {self.encoder!r}.{hint}"
            )
            raise ConfigKeyError("model.encoder", message)
        for part, encoder in self.encoders.items():
            if encoder not in _PART_ENCODERS and ":" not in encoder:
                known = ", ".join(_PART_ENCODERS)
                raise ConfigKeyError(
                    "model.encoders",
                    f"model.encoders.{part}: expected {known} or 'module:Class', not {encoder!r}."
                    f"{nearest(encoder, _PART_ENCODERS)}",
                )
        if self.feature_size is not None:
            between("model.feature_size", self.feature_size, 1, _WIDEST_LAYER)
        require(
            self.network is None or ":" in self.network,
            "model.network",
            "must have the form 'module:Class'",
        )

    def of_critic(self) -> ModelConfig:
        """Return what the value function or the critics are built by."""
        if self.critic_hidden_sizes is None:
            return self
        return replace(self, hidden_sizes=self.critic_hidden_sizes)


def _require_layers(key: str, sizes: list[int]) -> None:
    for index, size in enumerate(sizes):
        between(f"{key}[{index}]", size, 1, _WIDEST_LAYER)
    most = _DEEPEST_NETWORK
    require(len(sizes) <= most, key, f"must be at most {most} layers, not {len(sizes)}")


@dataclass(kw_only=True)
class AtariConfig:
    """The standard pipeline of Atari games (Mnih et al. 2015; OpenAI baselines)."""

    enabled: bool = False
    """Play the game through this pipeline instead of as it is."""
    noop_max: int = 30
    """A game begins with 1 to this many frames without an action; 0: none."""
    frame_skip: int = 4
    """Frames for which an action is held; the last two are merged by their maximum."""
    frame_stack: int = 4
    """Observations are this many frames, the newest last."""
    screen_size: int = 84
    """Height and width of a frame."""
    grayscale: bool = True
    """One channel of brightness instead of three of colour."""
    episodic_life: bool = True
    """In training, an episode ends with each life, and the game goes on in the next one."""
    fire_reset: bool = True
    """Press FIRE at the beginning of each life, in games that wait for it."""
    clip_reward: bool = True
    """In training, the reward is its sign."""
    sticky_actions: float | None = None
    """Probability that a frame repeats the action before; null: what the environment's id says."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        between("env.atari.noop_max", self.noop_max, 0, _MOST_FRAMES)
        between("env.atari.frame_skip", self.frame_skip, 1, _MOST_FRAMES)
        between("env.atari.frame_stack", self.frame_stack, 1, _MOST_FRAMES)
        between("env.atari.screen_size", self.screen_size, 8, _LARGEST_SCREEN)
        sticky = self.sticky_actions
        require(
            sticky is None or 0 <= sticky < 1,
            "env.atari.sticky_actions",
            f"must lie in [0, 1) or be null, not {sticky}",
        )


@dataclass(kw_only=True)
class EnvConfig:
    """How the environments run, and what is done to observations and rewards on the way."""

    vectorization: Literal["sync", "async", "native", "envpool"] = "sync"
    """All environments in this process, or each in its own. Native: on threads, of Atari ale-py's
    own vector environment, which can only be resumed approximately, of Procgen EnvPool's games.
    Envpool: Atari in EnvPool, on threads, by the rules of sync; resumed only approximately."""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """The pipeline of Atari games."""
    wrappers: list[str] = field(default_factory=list)
    """Gymnasium wrappers around the environment, as "module:Class", the innermost first."""
    action_masks: Literal["off", "info", "method", "observation"] = "off"
    """Where the mask of legal discrete actions comes from: the environment's info, its method
    action_masks(), or the key action_mask of a Dict observation (not SAC and TD3)."""
    info_keys: list[str] = field(default_factory=list)
    """Keys of the environment's info that go into the batch; arrays with their shape, "key[3]"."""
    reset_options: dict[str, Any] = field(default_factory=dict)
    """Options of every reset, in training, evaluation and resume, as YAML: "{level: 3}"."""
    normalize_observation: bool = False
    """Scale observations to zero mean and unit variance, by running statistics."""
    normalize_reward: bool = False
    """Scale rewards by the deviation of the discounted return; reported returns stay raw."""
    clip_observation: float = 10.0
    """Bound of a normalized observation, in standard deviations."""
    clip_reward: float = 10.0
    """Bound of a normalized reward."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        self.atari.validate()
        for index, name in enumerate(self.wrappers):
            key = f"env.wrappers[{index}]"
            require(":" in name, key, f"must have the form 'module:Class', not {name!r}")
        require(
            not (self.wrappers and (self.atari.enabled or self.vectorization == "native")),
            "env.wrappers",
            "must be empty with env.atari and with native environments: pipelines of their own",
        )
        require(
            "reset_mask" not in self.reset_options,
            "env.reset_options",
            "cannot have reset_mask, which is the library's",
        )
        require(
            self.action_masks == "off" or self.vectorization in ("sync", "async"),
            "env.action_masks",
            f"must be off with vectorization {self.vectorization}, whose games give none",
        )
        for name in ("clip_observation", "clip_reward"):
            value = getattr(self, name)
            require(
                0 < value <= _LARGEST_CLIP,
                f"env.{name}",
                f"must be above 0 and at most {_LARGEST_CLIP:,.0f}, not {value}",
            )


@dataclass(kw_only=True)
class EvaluationConfig:
    """Episodes played aside from training: fresh seeds, raw rewards, no effect on the run."""

    interval: int | None = None
    """Environment steps between two evaluations; null: only at the end."""
    episodes: int = 20
    """Episodes of one evaluation; of several agents, games."""
    max_episode_steps: int | None = 1_000_000
    """Steps after which an episode that has not ended counts as truncated; null: never."""
    num_envs: int = 8
    """Environments played side by side."""
    deterministic: bool = True
    """Take the most likely action instead of a sample."""
    final: bool = True
    """Evaluate at the end of the run."""
    seed: int | None = None
    """Seed of the evaluation episodes; null: derived from the run's."""
    stop_on_return: float | None = None
    """Stop the run when an evaluation's mean return reaches this."""
    patience: int | None = None
    """Stop the run after this many evaluations in a row without a new best."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor in evaluation alone, beside and before those of
    training: "{num_levels: 0}"."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        at_least("evaluation.interval", self.interval, 1)
        at_least("evaluation.episodes", self.episodes, 1)
        at_least("evaluation.max_episode_steps", self.max_episode_steps, 1)
        between("evaluation.num_envs", self.num_envs, 1, _MOST_ENVIRONMENTS)
        at_least("evaluation.seed", self.seed, 0)
        at_least("evaluation.patience", self.patience, 1)
        for name in ("stop_on_return", "patience"):
            alone = getattr(self, name) is not None and self.interval is None
            require(
                not alone,
                f"evaluation.{name}",
                "needs evaluation.interval: the run is evaluated only at its end",
            )


@dataclass(kw_only=True)
class CheckpointConfig:
    """When the whole training state is saved, and what is kept."""

    interval: int | None = 50_000
    """Environment steps between two checkpoints; null: only at the end and on a signal."""
    keep_last: int = 3
    """How many of the newest checkpoints stay."""
    keep_best: bool = True
    """Also keep the one with the best evaluation."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        at_least("checkpoint.interval", self.interval, 1)
        at_least("checkpoint.keep_last", self.keep_last, 1)


@dataclass(kw_only=True)
class TrackingConfig:
    """Where metrics go besides ``metrics.jsonl``."""

    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases: not at all, to local files, or to the service."""
    wandb_project: str = "rl_training"
    """Its project."""
    wandb_group: str | None = None
    """Its group, to gather the seeds of one experiment."""
    log_interval: int | None = None
    """Environment steps between two log entries; null: every iteration."""
    video_interval: int | None = None
    """Environment steps between two videos; null: none."""

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value."""
        at_least("tracking.log_interval", self.log_interval, 1)
        at_least("tracking.video_interval", self.video_interval, 1)


@dataclass(kw_only=True)
class TrainConfig:
    """One training run: an algorithm, an environment and a seed. Everything else has a default."""

    algo: str
    """Name of the algorithm; `rl-training list` shows them."""
    env_id: str
    """Gymnasium id of the environment; "my_package:MyEnv-v0" imports the package first."""
    seed: int = 1
    """Fixes every random number of the run."""
    output_dir: str = "runs"
    """Directory in which the run's own directory is made."""
    total_timesteps: int = 100_000
    """Environment steps of the whole run, over all environments together."""
    num_envs: int = 8
    """Environments that collect side by side."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environment's constructor, as YAML: "{max_episode_steps: 100}"."""
    tags: list[str] = field(default_factory=list)
    """Words kept with the run, to find it again; "atari" switches env.atari on."""
    device: str = "auto"
    """Where the networks are: "auto", "cpu", "cuda", "cuda:1". Auto: the CPU."""
    compile: bool = False
    """Compile the update with torch.compile: a minute at the start, faster afterwards."""
    torch_threads: int = 1
    """Threads of PyTorch on the CPU; results are exactly repeatable for the same number."""
    init_from: str | None = None
    """Run or checkpoint whose weights this run starts from (a warm start, not a resume)."""
    algorithm: Any = None
    """The algorithm's own group: its dataclass ``Config``. None stands for its defaults."""
    model: ModelConfig = None  # type: ignore[assignment]
    """The networks. None stands for the algorithm's defaults."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environments."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation during and after the run."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Logs."""

    def __post_init__(self) -> None:
        """Fill in the algorithm's defaults, and do what a tag says."""
        if self.algorithm is None:
            self.algorithm = algorithm_class(self.algo).Config()
        if self.model is None:
            self.model = model_defaults(type(self.algorithm))
        if ATARI_TAG in self.tags and not self.env.atari.enabled:
            # Copies: other configs may hold the same groups.
            self.env = replace(self.env, atari=replace(self.env.atari, enabled=True))

    def validate(self) -> None:
        """Raise ConfigKeyError for an impossible value outside the groups."""
        require(bool(self.env_id.strip()), "env_id", "must name an environment")
        require(bool(self.output_dir), "output_dir", "must name a directory")
        at_least("seed", self.seed, 0)
        at_least("total_timesteps", self.total_timesteps, 1)
        between("num_envs", self.num_envs, 1, _MOST_ENVIRONMENTS)
        between("torch_threads", self.torch_threads, 1, _MOST_THREADS)
        kind, atari = self.env.vectorization, self.env.atari.enabled
        require(
            atari or self.env.atari == AtariConfig(),
            "env.atari.enabled",
            "must be true: other settings of env.atari do nothing without it",
        )
        require(
            kind != "native" or atari or self.env_id.startswith("procgen/"),
            "env.vectorization",
            "native is for Atari, where it needs env.atari.enabled, and for Procgen",
        )
        require(
            kind != "envpool" or atari,
            "env.vectorization",
            "envpool is for Atari, where it needs env.atari.enabled; EnvPool's Procgen is native",
        )


def model_defaults(algorithm: type[Any]) -> ModelConfig:
    """Return the networks that an algorithm's ``Config`` asks for in ``model_defaults``."""
    return ModelConfig(**getattr(algorithm, "model_defaults", {}))


def at_least(key: str, value: int | None, minimum: int) -> None:
    """Raise ConfigKeyError when a number that is given is below ``minimum``."""
    require(value is None or value >= minimum, key, f"must be at least {minimum}, not {value}")


def between(key: str, value: int, minimum: int, maximum: int) -> None:
    """Raise ConfigKeyError when a number lies outside of its bounds."""
    at_least(key, value, minimum)
    require(value <= maximum, key, f"must be at most {maximum:,}, not {value}")
