"""Registry of agents, embryos, models and kernels by name. Imports no torch.

A name is looked up in three places: the built-in table, the entry-point groups ``tianji.agents``,
``tianji.embryos`` and ``tianji.models``, and, if it reads ``module:attribute``, that module. Modules of
built-in settings import no torch, so a config is validated before anything heavy is imported.

Kernels are in ``fast_cpu``, which imports the networks and losses that it speeds up. Networks and losses find
kernels by name, without importing ``fast_cpu`` before they need it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Literal, cast, get_args

from pydantic import BaseModel

from tianji_algos.errors import BrokenExtensionError, UnknownNameError
from tianji_plugins import Plugins

Kind = Literal["agent", "embryo", "model"]


@dataclass(frozen=True)
class _BuiltIn:
    """Path of a built-in class and of its settings, as ``module:attribute``, and its model contract.

    Attributes:
        contract: class that a model derives from, and that agents and embryos ask for.
        plays_in_team: an agent's attribute of that name.
    """

    target: str
    settings: str
    contract: str
    default_model: str = ""
    default_embryo: str = ""
    plays_in_team: bool = False


def _algorithm(
    name: str, prefix: str, contract: str, model: str, *, plays_in_team: bool = False
) -> dict[tuple[Kind, str], _BuiltIn]:
    """Describe an algorithm's agent and embryo, whose names begin with ``prefix``, and its default model."""
    classes, settings = f"tianji_algos.{name}.{name}:{prefix}", f"tianji_algos.{name}.settings:{prefix}"
    agent = _BuiltIn(f"{classes}Agent", f"{settings}AgentSettings", contract, model, name, plays_in_team)
    embryo = _BuiltIn(f"{classes}Embryo", f"{settings}Settings", contract)
    return {("agent", name): agent, ("embryo", name): embryo}


def _model(name: str, target: str, settings: str, contract: str) -> dict[tuple[Kind, str], _BuiltIn]:
    models = "tianji_algos.models"
    return {("model", name): _BuiltIn(f"{models}.{target}", f"{models}.settings:{settings}", contract)}


_BUILT_IN: Final[Mapping[tuple[Kind, str], _BuiltIn]] = MappingProxyType(
    _algorithm("dqn", "DQN", "QNetwork", "mlp_q")
    | _algorithm("impala", "IMPALA", "ActorCritic", "mlp_actor_critic")
    | _algorithm("maddpg", "MADDPG", "TeamDeterministic", "team_deterministic", plays_in_team=True)
    | _algorithm("mappo", "MAPPO", "TeamActorCritic", "team_actor_critic", plays_in_team=True)
    | _algorithm("ppo", "PPO", "ActorCritic", "mlp_actor_critic")
    | _algorithm("qmix", "QMIX", "TeamQ", "team_q", plays_in_team=True)
    | _algorithm("r2d2", "R2D2", "RecurrentQNetwork", "recurrent_q")
    | _algorithm("sac", "SAC", "GaussianActorQ", "mlp_gaussian_q")
    | _algorithm("td3", "TD3", "DeterministicActorQ", "mlp_deterministic_q")
    | _model("cnn_actor_critic", "cnn:CNNActorCritic", "CNNActorCriticSettings", "ActorCritic")
    | _model("cnn_deterministic_q", "actor_q:CNNDeterministicQ", "CNNActorQSettings", "DeterministicActorQ")
    | _model("cnn_gaussian_q", "actor_q:CNNGaussianQ", "CNNActorQSettings", "GaussianActorQ")
    | _model("cnn_q", "cnn:CNNQ", "CNNQSettings", "QNetwork")
    | _model("mlp_actor_critic", "mlp:MLPActorCritic", "MLPActorCriticSettings", "ActorCritic")
    | _model("mlp_deterministic_q", "actor_q:MLPDeterministicQ", "MLPActorQSettings", "DeterministicActorQ")
    | _model("mlp_gaussian_q", "actor_q:MLPGaussianQ", "MLPActorQSettings", "GaussianActorQ")
    | _model("mlp_q", "mlp:MLPQ", "MLPQSettings", "QNetwork")
    | _model(
        "recurrent_actor_critic", "recurrent:GatedActorCritic", "RecurrentActorCriticSettings", "ActorCritic"
    )
    | _model("recurrent_q", "recurrent:GatedQ", "RecurrentQSettings", "RecurrentQNetwork")
    | _model(
        "team_actor_critic",
        "teams.actor_critic:TeamActorCritic",
        "TeamActorCriticSettings",
        "TeamActorCritic",
    )
    | _model(
        "team_deterministic",
        "teams.deterministic:TeamDeterministic",
        "TeamDeterministicSettings",
        "TeamDeterministic",
    )
    | _model("team_q", "teams.q_network:TeamQ", "TeamQSettings", "TeamQ")
)

PLUGINS: Final[Mapping[Kind, Plugins]] = MappingProxyType(
    {
        kind: Plugins(
            kind,
            f"tianji.{kind}s",
            UnknownNameError,
            BrokenExtensionError,
            {name: one.target for (of, name), one in _BUILT_IN.items() if of == kind},
        )
        for kind in get_args(Kind)
    }
)

_KERNELS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DQN.derivatives": "dqn:DQNByHand",
        "IMPALALoss": "impala:IMPALALossByHand",
        "MLPActorCritic.backprop": "networks:MLPBackprop",
        "MLPActorCritic.executor": "networks:actor_critic_executor",
        "MLPActorQ.executor": "continuous:ActorExecutor",
        "MLPQ.backprop": "networks:MLPQBackprop",
        "MLPQ.evaluation": "networks:evaluate_q",
        "MLPQ.executor": "networks:q_executor",
        "PPOLoss": "ppo:PPOLossByHand",
        "SAC.derivatives": "continuous:SACByHand",
        "TD3.derivatives": "continuous:TD3ByHand",
        "TeamActorCritic.backprop": "team:TeamBackprop",
        "TeamActorCritic.executor": "team:team_executor",
    }
)
"""Path of each kernel in ``fast_cpu``, by the name of the class or method in torch that it replaces."""


@dataclass(frozen=True)
class AgentDefaults:
    """Names of the model and the embryo that an agent uses unless the config says otherwise."""

    model: str
    embryo: str


def names(kind: Kind) -> tuple[str, ...]:
    """List all names of a kind, built-in and from entry points, sorted."""
    return tuple(PLUGINS[kind].names())


def load(kind: Kind, name: str) -> type[Any]:
    """Import the class behind a name.

    Args:
        name: a built-in name, an entry point's, or ``module:attribute``.

    Raises:
        UnknownNameError: nothing of that kind has the name.
        BrokenExtensionError: the name does not load, or is no class of that kind.
    """
    loaded = PLUGINS[kind].load(name)
    return cast("type[Any]", loaded) if (kind, name) in _BUILT_IN else _checked(kind, name, loaded)


def settings_type(kind: Kind, name: str) -> type[BaseModel]:
    """Find the settings class of a name; imports no torch for a built-in one.

    Raises:
        UnknownNameError: nothing of that kind has the name.
        BrokenExtensionError: the class does not load or declares no ``settings_type``.
    """
    if (built_in := _BUILT_IN.get((kind, name))) is not None:
        return cast("type[BaseModel]", PLUGINS[kind].load(name, built_in.settings))
    return cast("type[BaseModel]", load(kind, name).settings_type)


def derives(kind: Kind, name: str, other: str) -> bool:
    """Whether a user's class derives from another name's class; False for built-in names, without an import.

    Raises:
        UnknownNameError: nothing of that kind has one of the names.
        BrokenExtensionError: one of the classes does not load.
    """
    return (kind, name) not in _BUILT_IN and issubclass(load(kind, name), load(kind, other))


def agent_defaults(name: str) -> AgentDefaults:
    """Find the model and the embryo that an agent uses by default; imports no torch for a built-in one.

    Raises:
        UnknownNameError: no agent has the name.
        BrokenExtensionError: the agent does not load.
    """
    if (built_in := _BUILT_IN.get(("agent", name))) is not None:
        return AgentDefaults(built_in.default_model, built_in.default_embryo)
    agent = load("agent", name)
    return AgentDefaults(agent.default_model, agent.default_embryo)


def contract(kind: Kind, name: str) -> str | None:
    """Return the model contract of a built-in agent, embryo or model, by name; None for others."""
    built_in = _BUILT_IN.get((kind, name))
    return None if built_in is None else built_in.contract


def plays_in_team(agent: str) -> bool | None:
    """Whether a built-in agent acts for a team; None for others, which would have to be imported."""
    built_in = _BUILT_IN.get(("agent", agent))
    return None if built_in is None else built_in.plays_in_team


def built_in_names(kind: Kind, contract: str) -> list[str]:
    """List the built-in names of a kind that go with a contract."""
    return [name for (of, name), one in _BUILT_IN.items() if of == kind and one.contract == contract]


def kernel(name: str) -> Any:
    """Import the numpy kernel of a class or method in torch, for a CPU."""
    module, _, attribute = _KERNELS[name].partition(":")
    return getattr(import_module(f"tianji_algos.fast_cpu.{module}"), attribute)


def _checked(kind: Kind, name: str, loaded: object) -> type[Any]:
    """Refuse an object that is no class of its kind: the mistake would surface in another process."""
    from tianji_algos import core  # noqa: PLC0415 - imports torch, which built-in names do without

    base = {"agent": core.Agent, "embryo": core.Embryo, "model": core.Model}[kind]
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise BrokenExtensionError(
            f"{kind} {name!r} is {loaded!r}, not a subclass of {base.__module__}.{base.__name__}"
        )
    settings = getattr(loaded, "settings_type", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise BrokenExtensionError(
            f"{kind} {name!r} declares no `settings_type`, a pydantic model of its settings"
        )
    return loaded
