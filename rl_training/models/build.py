"""Encoders and action heads from a model's configuration, by what is observed and what is done."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from rl_training.envs.hybrid import policy_numbers
from rl_training.envs.layout import Layout
from rl_training.envs.masks import MaskColumns
from rl_training.envs.spaces import space_from_dict
from rl_training.errors import UserError
from rl_training.models.actor_critic import ActorCritic, Architecture
from rl_training.models.cnn import ENCODERS, is_image, natural_encoder
from rl_training.models.custom import TensorDictActorCritic, require_networks
from rl_training.models.heads import (
    ActionHead,
    CategoricalHead,
    GaussianHead,
    StateDependentNoiseHead,
)
from rl_training.models.hybrid import HybridHead
from rl_training.models.masked import masked_encoder, masked_head
from rl_training.models.mlp import MLP
from rl_training.models.multi_categorical import MultiCategoricalHead
from rl_training.models.parts import has_own_encoders, parts_encoder_factory
from rl_training.registry import import_object

if TYPE_CHECKING:
    from tensordict.nn import TensorDictModuleBase

    from rl_training.config import ModelConfig

PYTHON_NETWORKS = "python:networks"
"""What ``model.network`` says of networks that were given as objects."""


def build_actor_critic(
    cls: type[ActorCritic],
    *,
    model: ModelConfig,
    observation_shape: Sequence[int],
    action_space: Mapping[str, Any],
    architecture: Architecture,
    observation_dtype: str = "float32",
    layout: Layout | None = None,
    networks: tuple[TensorDictModuleBase, TensorDictModuleBase] | None = None,
    model_options: Mapping[str, Any] | None = None,
    mask: MaskColumns | None = None,
    **head_options: Any,
) -> ActorCritic:
    """Return the model that ``model`` describes.

    Args:
        cls: the kind of actor-critic that the algorithm trains.
        model: sizes, activation, encoder; or ``network``, a subclass of ``cls`` by name.
        observation_shape: of one observation.
        action_space: as `rl_training.envs.space_to_dict` gives it.
        architecture: how policy and value function share an encoder.
        observation_dtype: of observations, by name; images are of ``uint8``.
        layout: of their parts; None: they have none.
        networks: the user's own policy and value modules, instead of all that.
        model_options: of the class, beside encoder, head and architecture.
        mask: where the mask of legal actions stands in an observation vector.
        **head_options: of `head_factory`.

    Raises:
        UserError: a network that does not fit, or one that was given in Python and is missing now.
    """
    action = described_action(action_space)
    if networks is not None:
        if mask is not None:
            raise UserError("env.action_masks: networks of your own take no masks yet.")
        return _from_modules(cls, networks, model, action)
    if model.network == PYTHON_NETWORKS:
        raise UserError(
            "this policy's networks were given in Python: "
            "pass them again, load(path, networks=(policy, value))."
        )
    chosen = cls if model.network is None else import_object(model.network)
    # Before anything is called: what a text names may be any function of any module.
    if not (isinstance(chosen, type) and issubclass(chosen, cls)):
        raise UserError(f"model.network: {model.network} must be a subclass of {cls.__name__}.")
    observed = (observation_shape, observation_dtype, layout)
    encoders = {"make_encoder": configured_encoder(model, *observed)}
    if model.critic_hidden_sizes is not None:
        _require_value_encoder(chosen, architecture)
        encoders["make_value_encoder"] = configured_encoder(model.of_critic(), *observed)
    make_head = head_factory(**action, **head_options)
    options = dict(model_options or {})
    if mask is not None:
        make_head = functools.partial(masked_head, **action)
        if chosen.masks_its_features:
            options["mask_columns"] = mask
        else:
            encoders = {name: masked_encoder(make, mask) for name, make in encoders.items()}
    return chosen(
        **encoders,
        make_head=make_head,
        architecture=architecture,
        orthogonal_init=model.orthogonal_init,
        **options,
    )


def _from_modules(
    cls: type[ActorCritic],
    networks: tuple[TensorDictModuleBase, TensorDictModuleBase],
    model: ModelConfig,
    action: dict[str, Any],
) -> ActorCritic:
    """Return a model of a policy and a value module that do not come from ``model``."""
    if model.critic_hidden_sizes is not None:
        raise UserError("model.critic_hidden_sizes: networks of your own have their layers.")
    if not issubclass(TensorDictActorCritic, cls):
        raise UserError(f"networks do not fit {cls.__name__}: give model.network instead.")
    if "continuous" in action:
        raise UserError("networks of your own take no Dict or Tuple actions yet.")
    policy, value = require_networks(networks)
    return TensorDictActorCritic(policy=policy, value=value, **action)


def _require_value_encoder(chosen: type[ActorCritic], architecture: Architecture) -> None:
    """Raise where a class has no encoder of the value function's own, or takes none."""
    taken = inspect.signature(chosen).parameters.values()
    takes = any(
        each.name == "make_value_encoder" or each.kind == each.VAR_KEYWORD for each in taken
    )
    if architecture != "dual" or chosen.masks_its_features or not takes:
        raise UserError(
            f"model.critic_hidden_sizes must be null: {chosen.__name__}, architecture "
            f"{architecture}, takes no make_value_encoder."
        )


def described_action(action_space: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a head has to know of an action space (as `rl_training.envs.space_to_dict` gives
    it): ``num_actions, discrete, action_shape`` and, of several discrete actions, ``sizes``; of
    actions with parts also how many numbers are ``continuous``.
    """
    kind = action_space["type"]
    shape = tuple(action_space.get("shape", ()))
    if kind == "Discrete":
        return {"num_actions": action_space["n"], "discrete": True, "action_shape": ()}
    if kind == "Box":
        return {"num_actions": math.prod(shape), "discrete": False, "action_shape": shape}
    if kind in ("Dict", "Tuple"):
        counts, continuous = policy_numbers(space_from_dict(dict(action_space)))
        return {
            "num_actions": sum(counts) + continuous,
            "discrete": not continuous,
            "action_shape": (len(counts) + continuous,),
            "sizes": counts or None,
            "continuous": continuous,
        }
    sizes = [2] * math.prod(shape) if kind == "MultiBinary" else action_space["nvec"]
    return {
        "num_actions": sum(sizes),
        "discrete": True,
        "action_shape": shape,
        "sizes": tuple(sizes),
    }


def configured_encoder(
    model: ModelConfig,
    observation_shape: Sequence[int],
    observation_dtype: str,
    layout: Layout | None = None,
) -> Callable[[], nn.Module]:
    """Return a function that makes the encoder that ``model`` describes; see `encoder_factory`, and
    for observations with images or named encoders `parts_encoder_factory`.
    """
    options: dict[str, Any] = {
        "encoder": model.encoder,
        "hidden_sizes": model.hidden_sizes,
        "activation": model.activation,
        "output_size": model.feature_size,
        "precision": model.precision,
        "channels_last": model.channels_last,
    }
    if layout is not None:
        if has_own_encoders(layout, model.encoders):
            return parts_encoder_factory(layout=layout, encoders=model.encoders, **options)
        if layout.images:
            options["scale"] = layout.images[0].scale
    return encoder_factory(
        observation_shape=observation_shape, observation_dtype=observation_dtype, **options
    )


def encoder_factory(
    *,
    encoder: str | Callable[..., nn.Module],
    observation_shape: Sequence[int],
    hidden_sizes: Sequence[int],
    activation: str,
    observation_dtype: str = "float32",
    **image_options: Any,
) -> Callable[[], nn.Module]:
    """Return a function that makes a new encoder at each call.

    Args:
        encoder: ``auto`` (``nature`` for images, ``impala`` for those too small for it, else
            ``mlp``), ``mlp``, ``nature`` or ``impala``; or a class (``"module:Class"`` or the class
            itself) called with ``observation_shape, hidden_sizes, activation`` by keyword, that has
            an ``output_size``.
        observation_shape: of one observation.
        hidden_sizes: units of each hidden layer of an MLP.
        activation: a name of `rl_training.models.mlp.ACTIVATIONS`, of an MLP.
        observation_dtype: of observations, by name.
        **image_options: of `rl_training.models.cnn.ImageEncoder`, and ``output_size``.

    Raises:
        UserError: the class cannot be imported, the encoder lacks ``output_size``, or observations
            are no images of uint8 where such an encoder is asked for.
    """
    if encoder == "auto" and len(observation_shape) >= 3:
        encoder = _encoder_of_images(observation_shape)
    if isinstance(encoder, str) and encoder in ENCODERS:
        if observation_dtype != "uint8" and image_options.get("scale") is None:
            raise UserError(
                f"model.encoder: {encoder} takes images of uint8, and observations of shape "
                f"{tuple(observation_shape)} are {observation_dtype}: let the environment give "
                "uint8 (0 to 255), or floats with bounds within [-1, 1], without "
                "env.normalize_observation, or set model.encoder to "
                "'mlp' or 'module:Class'."
            )
        shape = tuple(observation_shape)
        return functools.partial(ENCODERS[encoder], observation_shape=shape, **image_options)
    chosen = import_object(encoder) if isinstance(encoder, str) and ":" in encoder else encoder
    cls = MLP if chosen in ("auto", "mlp") else chosen
    if isinstance(cls, str):
        raise UserError(
            f"model.encoder: unknown {cls!r}; allowed: auto, mlp, nature, impala or 'module:Class'."
        )
    # Before anything is called: what a text names may be any function of any module.
    if isinstance(encoder, str) and not isinstance(cls, type):
        raise UserError(f"model.encoder: {encoder} must be a class, a torch.nn.Module.")
    if isinstance(cls, type) and not issubclass(cls, nn.Module):
        raise UserError(f"model.encoder: {cls.__name__} must be a torch.nn.Module.")

    def make() -> nn.Module:
        module = cls(
            **{"input_shape" if cls is MLP else "observation_shape": tuple(observation_shape)},
            hidden_sizes=tuple(hidden_sizes),
            activation=activation,
        )
        if not isinstance(getattr(module, "output_size", None), int):
            name = type(module).__name__
            raise UserError(f"model.encoder: {name} needs an integer attribute 'output_size'.")
        return module

    return make


def _encoder_of_images(shape: Sequence[int]) -> str:
    if is_image(shape):
        return natural_encoder(shape)
    raise UserError(
        f"observations of shape {tuple(shape)} have more dimensions than an image, and no "
        "encoder for them is built in: give model.encoder 'module:Class', or 'mlp' to flatten them."
    )


def head_factory(
    *,
    num_actions: int,
    discrete: bool,
    action_shape: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    continuous: int = 0,
    log_std_init: float = 0.0,
    gsde: bool = False,
    gsde_resample_interval: int = -1,
) -> Callable[[int], ActionHead]:
    """Return a function from a number of features to the action head.

    Args:
        num_actions: how many discrete actions there are, or how many dimensions a continuous
            one has.
        discrete: Categorical; otherwise Gaussian.
        action_shape: of one action that has a shape; None: ``(num_actions,)``.
        sizes: of several discrete actions at once, how many choices each has.
        continuous: how many continuous numbers stand beside them.
        log_std_init: the Gaussian's first log standard deviation.
        gsde: state-dependent exploration, resampled every ``gsde_resample_interval`` steps.
    """

    def make(num_features: int) -> ActionHead:
        if sizes is not None and continuous:
            return HybridHead(
                num_features=num_features,
                sizes=sizes,
                continuous=continuous,
                log_std_init=log_std_init,
            )
        if sizes is not None:
            return MultiCategoricalHead(
                num_features=num_features, sizes=sizes, action_shape=action_shape
            )
        if discrete:
            return CategoricalHead(num_features=num_features, num_actions=num_actions)
        if gsde:
            return StateDependentNoiseHead(
                num_features=num_features,
                num_actions=num_actions,
                action_shape=action_shape,
                log_std_init=log_std_init,
                resample_interval=gsde_resample_interval,
            )
        return GaussianHead(
            num_features=num_features,
            num_actions=num_actions,
            action_shape=action_shape,
            log_std_init=log_std_init,
        )

    return make
