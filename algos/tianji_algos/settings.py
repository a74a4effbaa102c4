"""Settings that algorithms share: exploration, optimizers, target networks, rollouts. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

from tianji_algos.schedules import Schedule

Backend = Literal["auto", "torch", "numpy"]
"""Library that differentiates the losses of an update: see ``OptimizerSettings``."""


def _in_torch(backend: Backend) -> Backend:
    if backend == "numpy":
        raise ValueError('these losses have no derivatives by hand; "auto" or "torch" would be right')
    return backend


def _on_off_or_auto(value: Any) -> Any:
    if isinstance(value, bool) or value == "auto":
        return value
    raise PydanticKnownError("literal_error", {"expected": "true, false or 'auto'"})


Switch = Annotated[bool | Literal["auto"], BeforeValidator(_on_off_or_auto)]
"""On, off, or "auto", which depends on the observations."""

TorchAlone = Annotated[Backend, AfterValidator(_in_torch)]
"""Backend of losses without derivatives by hand."""


class Settings(BaseModel):
    """Settings as a section of a TOML file gives them: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    adjustable: ClassVar[frozenset[str]] = frozenset()
    """Names of keys that may change during training, by ``adopt_settings`` of an update rule or an agent."""


class NoSettings(Settings):
    """Empty settings of an agent, embryo or model that has nothing to set."""


class OptimizerSettings(Settings):
    """Settings of Adam, and the schedule of its learning rate.

    Attributes:
        learning_rate: start value of the optimizer's learning rate.
        learning_rate_schedule: "linear" lets it fall to 0 at ``schedule_steps``; points, such as
            ``[[0, 1.0], [500_000, 0.3]]``, are env steps and the factor of the start value there, with lines
            between them.
        schedule_steps: env steps after which a linear schedule has reached 0.
        adam_eps: Adam's term against division by zero, added to a root.
        max_grad_norm: gradients are scaled down to this norm; None leaves them as they are.
        backend: "torch" differentiates the loss with autograd, on the network's device; "numpy" has
            derivatives by hand, on a CPU; "auto" is "numpy" where that is possible.
    """

    adjustable: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    learning_rate: float = Field(1e-3, gt=0)
    learning_rate_schedule: Schedule = "constant"
    schedule_steps: int | None = Field(None, ge=1)
    adam_eps: float = Field(1e-8, gt=0)
    max_grad_norm: float | None = Field(10.0, gt=0)
    backend: Backend = "auto"

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """Schedules of all scheduled hyperparameters."""
        return (self.learning_rate_schedule,)

    def learning_rate_of(self, part: str) -> float:  # noqa: ARG002 - the same for all
        """Return the start value of the learning rate of an optimizer, by the name of its part."""
        return self.learning_rate

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if "linear" in self.schedules and self.schedule_steps is None:
            raise ValueError("a linear schedule needs schedule_steps, the env steps after which it reaches 0")
        return self


class AnyOptimizerSettings(OptimizerSettings):
    """Settings of an optimizer, Adam or RMSProp.

    Attributes:
        optimizer: "adam" or "rmsprop".
        rmsprop_decay: share of its mean square that RMSProp keeps from update to update.
        rmsprop_eps: RMSProp's term against division by zero, added inside the root.
    """

    optimizer: Literal["adam", "rmsprop"] = "adam"
    rmsprop_decay: float = Field(0.99, ge=0, lt=1)
    rmsprop_eps: float = Field(1e-5, gt=0)


class TargetSettings(Settings):
    """Settings of a target network, which follows the online network.

    A config may keep settings of the other kind of update, so that ``--set`` can choose it.

    Attributes:
        target_update: "hard" copies the online network now and then, "soft" follows it with every update.
        target_every: "hard": updates from one copy to the next.
        target_tau: "soft": share of the way that the target network goes with every update.
    """

    adjustable: ClassVar[frozenset[str]] = frozenset({"target_every", "target_tau"})

    target_update: Literal["hard", "soft"] = "hard"
    target_every: int = Field(200, ge=1)
    target_tau: float = Field(0.005, gt=0, lt=1)


class ObservationSettings(Settings):
    """Normalisation of observations that are numbers.

    Attributes:
        normalize_observations: shift and scale each number of an observation by its running mean and standard
            deviation, and clip it to 10 of these.
        normalize_precisely: numbers may be far from 0 and vary however little; else means are float32, and
            1e-8 is added to variances.
    """

    normalize_observations: bool = False
    normalize_precisely: bool = True


class PolicyAgentSettings(Settings):
    """Settings of an agent that samples from its policy; section ``[agent]`` of a config.

    Attributes:
        scale_actions: real numbers: -1 and 1 of the policy are the bounds of the action; else they are -1 and
            1 in the environment, too, and numbers outside the bounds are clipped to them.
    """

    scale_actions: bool = True


class ContinuousAgentSettings(Settings):
    """Warm-up of an agent that learns continuous actions from a replay.

    Attributes:
        uniform_warmup: choose actions uniformly between their bounds until the first trained policy arrives,
            as the warm-up of the replay.
        warmup_hold: steps that each of these actions is held: held actions lead somewhere, while actions that
            change at every step cancel out.
    """

    uniform_warmup: bool = True
    warmup_hold: int = Field(1, ge=1)


class ActorSettings(OptimizerSettings):
    """Settings of Adam, for critics and for an actor that they teach.

    Attributes:
        actor_learning_rate: learning rate of the actor; None: ``learning_rate``, as for all else.
    """

    adjustable: ClassVar[frozenset[str]] = OptimizerSettings.adjustable | {"actor_learning_rate"}

    actor_learning_rate: float | None = Field(None, gt=0)

    def learning_rate_of(self, part: str) -> float:
        """Return the start value of a learning rate: the actor's, or that of all else."""
        own = self.actor_learning_rate if part in ("actor", "actors") else None
        return own or self.learning_rate


class ActorQSettings(ActorSettings, ObservationSettings):
    """Hyperparameters of an actor and Q functions that learn from a replay, and of their optimizers, Adam.

    Attributes:
        replay_ratio: rho, mean number of uses of each sample; ``batch_size`` makes one update a step.
        batch_size: samples per gradient update.
        warmup_steps: env steps in the replay before the first update.
        n_step: steps until the return is bootstrapped.
        gamma: discount.
        target_tau: share of the way that target networks go each time.
        reward_scale: rewards are multiplied by it.
        publish_every: updates from one policy that actors get to the next.
        backend: "numpy" is for the built-in fully connected networks alone.
    """

    adjustable: ClassVar[frozenset[str]] = ActorSettings.adjustable | {"target_tau"}

    learning_rate: float = Field(3e-4, gt=0)
    max_grad_norm: float | None = Field(None, gt=0)
    replay_ratio: float = Field(256.0, gt=0)
    batch_size: int = Field(256, ge=1)
    warmup_steps: int = Field(1000, ge=1)
    n_step: int = Field(1, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    target_tau: float = Field(0.005, gt=0, le=1)
    reward_scale: float = Field(1.0, gt=0)
    publish_every: int = Field(10, ge=1)


class PolicySettings(AnyOptimizerSettings):
    """Hyperparameters of on-policy algorithms, beside those of the loss.

    Attributes:
        rollout_steps: env steps, over all actors of a learner, in one round of updates.
        minibatch_size: samples per gradient update, about: a rollout is cut into equal minibatches.
        epochs: passes over each rollout.
        gamma: discount.
        reward_scale: rewards are multiplied by it.
        value_coef: weight of the value loss, half the squared error.
        entropy_coef: weight of the entropy bonus.
        normalize_observations: shift and scale each number of an observation by its running mean and standard
            deviation, and clip it to 10 of these; "auto": where there are floats among them.
        normalize_precisely: such numbers may be far from 0 and vary however little; else means are float32,
            and 1e-8 is added to variances.
        normalize_rewards: scale rewards by the running standard deviation of discounted returns, likewise,
            before ``reward_scale``; "auto": unless observations are images.
        normalize_values: the network gives values shifted and scaled by the running mean and standard
            deviation of their targets; the loss compares these, and advantages are in these deviations, too.
    """

    adjustable: ClassVar[frozenset[str]] = AnyOptimizerSettings.adjustable | {
        "entropy_coef",
        "epochs",
        "gamma",
        "reward_scale",
        "value_coef",
    }

    rollout_steps: int = Field(2048, ge=1)
    minibatch_size: int = Field(256, ge=1)
    epochs: int = Field(1, ge=1)
    gamma: float = Field(0.99, ge=0, le=1)
    reward_scale: float = Field(1.0, gt=0)
    value_coef: float = Field(0.5, ge=0)
    entropy_coef: float = Field(0.0, ge=0)
    normalize_observations: Switch = "auto"
    normalize_precisely: bool = True
    normalize_rewards: Switch = "auto"
    normalize_values: bool = False
    adam_eps: float = Field(1e-5, gt=0)
    max_grad_norm: float = Field(0.5, gt=0)

    @model_validator(mode="after")
    def _filled(self) -> Self:
        if self.minibatch_size > self.rollout_steps:
            raise ValueError(
                f"minibatch_size ({self.minibatch_size}) can never be filled: "
                f"a rollout has rollout_steps = {self.rollout_steps} samples"
            )
        return self

    @property
    def may_scale_rewards(self) -> bool:
        """Whether ``normalize_rewards = "auto"`` may normalise rewards."""
        return True
