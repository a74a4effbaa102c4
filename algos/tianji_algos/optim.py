"""Flat parameters, Adam and RMSProp, target networks, and the base of update rules with an optimizer.

``torch.optim`` imports torch's compiler with the first optimizer, which takes about a second at start-up,
and its step costs more than the arithmetic on a small network.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import ALONE, AllReduce, Embryo, Model, require_model
from tianji_algos.device import on_host
from tianji_algos.errors import DivergedError, StateMismatchError, UnsuitableModelError
from tianji_algos.schedules import remaining
from tianji_algos.settings import AnyOptimizerSettings, OptimizerSettings, TargetSettings


def flatten_parameters(model: nn.Module) -> nn.Parameter:
    """Move a model's parameters and gradients into one tensor each; the model keeps views of them.

    Args:
        model: on its final device; all its parameters are float32.

    Returns:
        The parameters as one flat parameter ``[P]``, whose ``grad [P]`` is the gradients.
    """
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        stop = start + parameter.numel()
        parameter.data = flat.detach()[start:stop].view_as(parameter)
        parameter.grad = flat.grad[start:stop].view_as(parameter)
        start = stop
    return flat


class Optimizer(ABC):
    """Updates one flat tensor by its gradient, on any device.

    Args:
        flat: the parameters ``[P]``, updated in place; ``flat.grad`` is their gradient.
        max_grad_norm: longer gradients are shortened to this norm; None leaves them as they are.

    Attributes:
        gradient: ``flat.grad``, which the next step follows.
    """

    name: ClassVar[str]
    """Name of its tensors and its count in a checkpoint."""

    def __init__(self, flat: torch.nn.Parameter, learning_rate: float, max_grad_norm: float | None) -> None:
        if flat.grad is None:
            flat.grad = torch.zeros_like(flat)
        self.learning_rate = learning_rate
        self.steps = 0
        self.gradient = flat.grad
        self._max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self._parameters = flat.detach()
        self._unread = 0
        """Steps since the last ``check`` whose gradients were not read."""
        self._frozen: torch.Tensor | None = None
        self._is_sound = torch.ones((), dtype=torch.bool, device=flat.device)
        self._sound_steps = torch.zeros((), dtype=torch.int64, device=flat.device)
        """Unread steps before the first one whose gradient was not finite."""

    def step(self) -> float:
        """Update the parameters; returns the gradient's norm before clipping.

        Raises:
            DivergedError: the gradient is not finite; the parameters are unchanged.
        """
        if self._frozen is not None:
            self.gradient.masked_fill_(self._frozen, 0.0)
        norm = float(torch.linalg.vector_norm(self.gradient))
        if not math.isfinite(norm):
            raise _diverged(self.steps)
        if norm > self._max_grad_norm:
            self.gradient.mul_(self._max_grad_norm / norm)
        self.steps += 1
        self._descend()
        return norm

    def step_unread(self) -> torch.Tensor:
        """Update the parameters on their device, and read nothing to the host.

        The first gradient that is not finite and all later ones count as 0, so that parameters and moments
        stay finite until ``check`` finds out.

        Returns:
            The gradient's norm before clipping, ``[]``.
        """
        if self._frozen is not None:
            self.gradient.masked_fill_(self._frozen, 0.0)
        norm: torch.Tensor = torch.linalg.vector_norm(self.gradient)
        self._is_sound.logical_and_(norm.isfinite())
        self._sound_steps.add_(self._is_sound)
        if math.isfinite(self._max_grad_norm):
            self.gradient.mul_((self._max_grad_norm / norm).clamp_(max=1.0))
        self.gradient.masked_fill_(~self._is_sound, 0.0)
        self._unread += 1
        self.steps += 1
        self._descend()
        return norm

    def freeze(self, where: torch.Tensor) -> None:
        """Freeze the parameters ``where [P]``, bit by bit: their gradients count as 0.

        Their moments, which would still move them, become 0.
        """
        self._frozen = where
        for remembered in self.tensors().values():
            remembered.masked_fill_(where, 0.0)

    def check(self) -> None:
        """Check that all gradients of ``step_unread`` since the last call were finite.

        Raises:
            DivergedError: one was not; the parameters have not changed since then.
        """
        if not self._unread:
            return
        unsound = self._unread - int(self._sound_steps)
        if unsound:
            raise _diverged(self.steps - unsound)
        self._sound_steps.zero_()
        self._unread = 0

    @abstractmethod
    def _descend(self) -> None:
        """Update the parameters and the moments of the gradients."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the moments of the gradients, in place: for a checkpoint, and for averages."""


def _diverged(updates: int) -> DivergedError:
    return DivergedError(
        f"the gradient is not finite after {updates} updates: the loss has diverged; "
        "a smaller learning_rate, or a smaller reward_scale, would be right"
    )


_BETA_1: Final = 0.9
_BETA_2: Final = 0.999


class Adam(Optimizer):
    """Adam (Kingma & Ba, 2015, algorithm 1) with gradients clipped by their norm.

    Args:
        eps: added to the root of the second moment.

    Attributes:
        mean: first moment of the gradient, ``[P]``.
        square: second moment of the gradient, ``[P]``.
    """

    name: ClassVar[str] = "adam"

    def __init__(
        self, flat: torch.nn.Parameter, learning_rate: float, eps: float, max_grad_norm: float | None
    ) -> None:
        super().__init__(flat, learning_rate, max_grad_norm)
        self.mean = torch.zeros_like(self.gradient)
        self.square = torch.zeros_like(self.gradient)
        self._count = torch.zeros((), device=flat.device)
        self._eps = eps

    def _descend(self) -> None:
        self._count.fill_(self.steps)
        # One pass over memory, as in torch.optim.Adam, without the Python around it that takes far longer.
        torch._fused_adam_(
            *([self._parameters], [self.gradient], [self.mean], [self.square], [], [self._count]),
            lr=self.learning_rate,
            beta1=_BETA_1,
            beta2=_BETA_2,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the moments, in place."""
        return {"adam.mean": self.mean, "adam.square": self.square}


class RMSProp(Optimizer):
    """RMSProp (Tieleman & Hinton, 2012, lecture 6.5) as TensorFlow has it, with gradients clipped.

    The mean square begins at 1, so that the first steps are small, and ``eps`` is inside the root: a step is
    at most ``learning_rate / sqrt(eps)`` times the gradient. IMPALA's settings assume this form (Espeholt
    et al., 2018, Atari experiments: decay 0.99, eps 0.1, no momentum). Torch adds eps to the root: its eps
    corresponds to about the root of eps here.

    Args:
        decay: share of the mean square that stays from one step to the next.
        eps: added to the mean square, inside the root.

    Attributes:
        square: mean square of the gradient, ``[P]``.
    """

    name: ClassVar[str] = "rmsprop"

    def __init__(
        self,
        flat: torch.nn.Parameter,
        learning_rate: float,
        decay: float,
        eps: float,
        max_grad_norm: float | None,
    ) -> None:
        super().__init__(flat, learning_rate, max_grad_norm)
        self.square = torch.ones_like(self.gradient)
        self._denominator = torch.empty_like(self.gradient)
        self._decay = decay
        self._eps = eps

    def _descend(self) -> None:
        self.square.mul_(self._decay).addcmul_(self.gradient, self.gradient, value=1.0 - self._decay)
        torch.add(self.square, self._eps, out=self._denominator).sqrt_()
        self._parameters.addcdiv_(self.gradient, self._denominator, value=-self.learning_rate)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name the mean square, in place."""
        return {"rmsprop.square": self.square}


def build_optimizer(
    flat: torch.nn.Parameter, settings: OptimizerSettings, which: slice = slice(None)
) -> Optimizer:
    """Build the optimizer of the parameters ``flat [P]``, or of a part of them."""
    part = torch.nn.Parameter(flat.detach()[which])
    part.grad = None if flat.grad is None else flat.grad[which]
    rate, longest = settings.learning_rate, settings.max_grad_norm
    if isinstance(settings, AnyOptimizerSettings) and settings.optimizer == "rmsprop":
        return RMSProp(part, rate, settings.rmsprop_decay, settings.rmsprop_eps, longest)
    return Adam(part, rate, settings.adam_eps, longest)


def add_gradients(gradient: torch.Tensor, learners: AllReduce) -> None:
    """Add up the gradients of all learners, in place: each is a part of the gradient of one loss."""
    if learners.number > 1:
        learners.add_up(gradient)


def average_gradients(gradient: torch.Tensor, learners: AllReduce) -> None:
    """Average the gradients of all learners, in place: each is of the mean loss of an equal share."""
    if learners.number > 1:
        learners.add_up(gradient.mul_(1.0 / learners.number))


Norm = float | torch.Tensor
"""Norm of a gradient: a number, or a tensor ``[]`` that has not been read to the host."""

Floats = npt.NDArray[np.float32]

Diagnostics = npt.NDArray[np.float32] | Sequence[float] | torch.Tensor
"""Reported numbers of an update, ``[K]``; a tensor if they have not been read to the host."""

Differentiated = tuple[Diagnostics, Floats | torch.Tensor]
"""Diagnostics and absolute errors ``[B]`` of an update whose gradients are already written."""


class Means:
    """Means of a few numbers over updates; numbers on a device are added up there."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sums = np.zeros(len(names), np.float64)
        self._unread: torch.Tensor | None = None
        self._updates = 0

    def add(self, diagnostics: Diagnostics, *norms: Norm) -> None:
        """Add the numbers of an update; where the first are a tensor, so are the norms."""
        self._updates += 1
        if isinstance(diagnostics, torch.Tensor):
            row = torch.cat((diagnostics, torch.stack([torch.as_tensor(norm) for norm in norms])))
            self._unread = row if self._unread is None else self._unread.add_(row)
            return
        self._sums[: len(diagnostics)] += diagnostics
        self._sums[len(diagnostics) :] += [float(norm) for norm in norms]

    def take(self) -> dict[str, float]:
        """Return the means since the last call, and begin anew; empty if there was no update."""
        if self._updates == 0:
            return {}
        if self._unread is not None:
            self._sums += self._unread.cpu().numpy()
            self._unread = None
        means = dict(zip(self._names, (self._sums / self._updates).tolist(), strict=True))
        self._sums[:] = 0.0
        self._updates = 0
        return means


AnyModel = TypeVar("AnyModel", bound=nn.Module)


class TargetNetwork(Generic[AnyModel]):
    """Target network: follows an online network, or a part of one, and is never trained.

    Args:
        flat: parameters of the online network, as ``flatten_parameters`` returned them.

    Attributes:
        model: the target network, with parameters of its own.
    """

    def __init__(self, online: AnyModel, flat: torch.Tensor) -> None:
        self.model = copy.deepcopy(online)
        self._online = online
        self._online_flat = flat.detach()
        self._flat = flatten_parameters(self.model).detach()
        for parameter in self.model.parameters():
            parameter.grad = None
        self.model.requires_grad_(requires_grad=False)

    def keep_up(self, settings: TargetSettings, updates: int) -> None:
        """Follow as the settings say, after so many updates."""
        if settings.target_update == "soft":
            self.follow(settings.target_tau)
        elif updates % settings.target_every == 0:
            self.follow(1.0)

    def follow(self, tau: float) -> None:
        """Go a share ``tau`` of the way to the online network; 1 copies it."""
        if tau < 1.0:
            self._flat.lerp_(self._online_flat, tau)
        else:
            self._flat.copy_(self._online_flat)
        for own, source in zip(self.model.buffers(), self._online.buffers(), strict=True):
            own.copy_(source)


Tensors = Mapping[str, torch.Tensor]


def tensors_of(prefix: str, model: nn.Module) -> dict[str, torch.Tensor]:
    """Name a network's parameters and buffers, in place."""
    return {f"{prefix}.{name}": tensor for name, tensor in model.state_dict().items()}


def restore_tensors(own: Tensors, saved: Tensors) -> None:
    """Copy all ``saved`` tensors into ``own``, or none.

    Raises:
        StateMismatchError: a tensor is missing, unknown or of another shape; says which.
    """
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved or name not in own:
            missing = "missing from the state" if name in own else "unknown to this model"
            raise StateMismatchError(f"tensor {name!r} is {missing}")
        found, expected = tuple(saved[name].shape), tuple(own[name].shape)
        if found != expected:
            raise StateMismatchError(f"tensor {name!r} is {found}, and {expected} in this model")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


class OptimizedEmbryo(Embryo):
    """An update rule with optimizers: their schedules, checkpoint, mean losses and averaged tensors.

    Args:
        model: trained in place, on its final device; its parameters move into one flat tensor.
        seed: seed of a random stream, which checkpoints have; None: there is none.

    Raises:
        UnsuitableModelError: the model does not derive from ``contract``.
    """

    algorithm: ClassVar[str]
    """Name in error messages and, in small letters, in checkpoints."""
    contract: ClassVar[type[nn.Module]]
    """Class that its networks derive from."""
    example: ClassVar[str]
    """Name of a model that derives from ``contract``."""
    diagnostics: ClassVar[tuple[str, ...]]
    """Names of the numbers that an update reports."""
    norms: ClassVar[tuple[str, ...]] = ("gradient_norm",)
    """Names of the norms that an update reports after these."""
    draws_apart: ClassVar[bool] = False
    """Whether each of several learners draws random numbers of its own."""

    settings: OptimizerSettings

    _optimizer: Optimizer
    """Its step count and learning rate are saved and reported."""
    _by_hand: bool
    """Whether losses are differentiated by hand; see ``_choose_derivatives``."""
    _reads_norms: bool
    """Whether each step reads the norm of its gradient; else an update reads nothing to the host."""

    def __init__(self, model: Model, settings: OptimizerSettings, seed: int | None = None) -> None:
        require_model(model, self.contract, self.algorithm, self.example)
        self.model = model
        self.settings = settings
        self._flat = flatten_parameters(model)
        assert self._flat.grad is not None
        self._gradient = self._flat.grad
        self._optimizers: dict[str, Optimizer] = {}
        self._networks: dict[str, nn.Module] = {"model": model}
        """Networks that a checkpoint has, by name."""
        self._means = Means((*self.diagnostics, *self.norms))
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._learners: AllReduce = ALONE
        self._reads_norms = on_host(self._flat.device)

    def _optimize(self, which: slice = slice(None), name: str = "") -> Optimizer:
        """Build the optimizer of a part of the parameters; checkpoints name it, unless it is the only one."""
        self._optimizers[name] = optimizer = build_optimizer(self._flat, self.settings, which)
        return optimizer

    def join(self, learners: AllReduce) -> None:
        """Learn from shares of one batch together: the update is that of the whole batch.

        Learners that draw apart do so even if they begin with the same state, as in a resumed run.
        """
        self._learners = learners
        if self.draws_apart and self._rng is not None and learners.index:
            stream: Any = self._rng.bit_generator
            stream.state = stream.jumped(learners.index).state

    def freeze(self, names: Sequence[str]) -> None:
        """Leave parameters of the model, by their names, as they are from now on."""
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None, "it is a view of the flat gradient"
            parameter.grad.fill_(name in names)
        for optimizer in self._optimizers.values():
            optimizer.freeze(optimizer.gradient.bool())
            optimizer.gradient.zero_()

    def averaged_state(self) -> Sequence[torch.Tensor]:
        """Return the optimizers' moments of the gradients."""
        return tuple(self._moments().values())

    def metrics(self) -> dict[str, float]:
        """Mean losses and diagnostics over the updates since the last call; empty if there were none.

        Raises:
            DivergedError: a gradient was not finite, in an update that did not read it.
        """
        self._check()
        means = self._means.take()
        return means and {**means, "learning_rate": self._optimizer.learning_rate}

    def schedule(self, env_steps: int) -> None:
        """Set the learning rates for so many env steps seen."""
        settings = self.settings
        share = remaining(settings.learning_rate_schedule, settings.schedule_steps, env_steps)
        for name, optimizer in self._optimizers.items():
            optimizer.learning_rate = share * settings.learning_rate_of(name)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return all networks' parameters, the optimizers' moments, a step count, and the random stream.

        Raises:
            DivergedError: as ``metrics`` does.
        """
        self._check()
        rest: dict[str, Any] = {"algorithm": self.algorithm.lower(), self._steps_key: self._optimizer.steps}
        if self._rng is not None:
            rest["rng"] = self._rng.bit_generator.state
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._tensors().items()}
        return tensors, rest

    def load_state(self, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; the settings decide scheduled values.

        Raises:
            StateMismatchError: the state is another algorithm's, or a tensor is missing, unknown or of
                another shape.
        """
        algorithm = self.algorithm.lower()
        if rest.get("algorithm") != algorithm:
            raise StateMismatchError(f"this state belongs to {rest.get('algorithm')!r}, not to {algorithm!r}")
        restore_tensors(self._tensors(), tensors)
        for optimizer in self._optimizers.values():
            optimizer.steps = rest[self._steps_key]
        if self._rng is not None:
            self._rng.bit_generator.state = rest["rng"]

    def _step(self, optimizer: Optimizer) -> Norm:
        """Make a step of an optimizer; returns the gradient's norm."""
        return optimizer.step() if self._reads_norms else optimizer.step_unread()

    def _check(self) -> None:
        """Raise an error if a gradient was not finite."""
        for optimizer in self._optimizers.values():
            optimizer.check()

    @property
    def _steps_key(self) -> str:
        return f"{self._optimizer.name}_steps"

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Name every tensor of a checkpoint, in place."""
        tensors = self._moments()
        for name, network in self._networks.items():
            tensors |= tensors_of(name, network)
        return tensors

    def _moments(self) -> dict[str, torch.Tensor]:
        """Name the moments of the gradients, in place."""
        return {
            f"{name}.{moment}" if name else moment: tensor
            for name, optimizer in self._optimizers.items()
            for moment, tensor in optimizer.tensors().items()
        }

    def _choose_derivatives(self, *, fits: bool, what_fits: str) -> None:
        """Decide by the setting, and by whether derivatives by hand fit the network where it is.

        Raises:
            UnsuitableModelError: the setting asks for them and they do not fit; says ``what_fits``.
        """
        backend = self.settings.backend
        if backend == "numpy" and not fits:
            this = f"this is {type(self.model).__name__} on {self._flat.device}"
            raise UnsuitableModelError(
                f'backend = "numpy" is for {what_fits}, and {this}; backend = "auto" would be right'
            )
        self._by_hand = self._reads_norms = fits and backend != "torch"
