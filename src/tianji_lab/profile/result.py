"""Result of a profile: measurements, predictions and the winner of the race; and all of it as JSON.

Rates are in sample uses a second (env steps times ``rho``), over all groups; null is no limit. The object has
``schema`` (1), ``config``, ``overrides``, ``environment`` (descriptions by subject), ``warnings``
(sentences), ``measurements`` (see ``Measurements``; `tianji profile --from` reads them), ``cluster`` (whose
cores are split), ``as_it_is`` (the config's own split on its own hosts), ``candidates`` (best prediction
first), ``race`` (null where nothing was trained; ``rows`` best first), ``recommended``, ``writable`` (the
recommended split if it can be run, else null), ``equation_4``, ``bottleneck``, ``extrapolated`` (everything
beyond the measurements) and ``verify`` (rows; the winner of the race first).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tianji_cli.config.schema import JobConfig, OnPolicySettings
from tianji_cli.errors import UsageError, os_errors_as
from tianji_cli.quantities import finite
from tianji_cli.runs.results import document_head
from tianji_lab.environment import warnings
from tianji_lab.profile.candidates import TIE, Candidate
from tianji_lab.profile.model import LEAST_VERSIONS, Cluster, Model, Prediction
from tianji_lab.profile.parts import SCHEMA, Measured, Measurements
from tianji_lab.profile.race import Contender, Race, fewest_changes
from tianji_lab.profile.split import Split, fingerprint, split_of


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Result of a profile.

    Attributes:
        hosts: the config's hosts, each like this machine.
        listed: candidates with the best predictions, best first.
        race: None if nothing was trained.
        verified: trainings with each candidate of the race, its winner first; empty without ``--verify``.
    """

    config: str
    overrides: Sequence[str]
    measured: Measured
    hosts: Cluster
    model: Model
    listed: Sequence[Candidate]
    race: Race | None = None
    verified: list[Contender] = field(default_factory=list)

    @property
    def recommended(self) -> Candidate:
        """The best verified candidate, else the winner of the race, else the best prediction."""
        if self.verified:
            best = (1 - TIE) * max(one.rates.middle for one in self.verified)
            return fewest_changes([one for one in self.verified if one.rates.middle >= best]).candidate
        return self.listed[0] if self.race is None else self.race.winner.candidate

    @property
    def racers(self) -> list[Candidate]:
        """Candidates of the race, its winner first; empty without a race."""
        if self.race is None:
            return []
        return [one.candidate for one in self.race.contenders]

    @cached_property
    def as_it_is(self) -> Prediction:
        """Prediction of the config's own split on its own hosts."""
        return Model(self.model.job, self.measured.measurements, self.hosts).predict(split_of(self.model.job))

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """Sentences on everything of the recommended split that goes beyond the measurements."""
        return tuple(self.model.extrapolated(self.recommended.split)) if self.race is None else ()

    @property
    def warnings(self) -> list[str]:
        """Sentences with reasons to trust the figures less."""
        mpi = "trained over shm in place of mpi, whose ranks mpiexec would have to start for each training"
        found = warnings(self.measured.measurements.busy)
        if self.model.job.distribution.transport.local == "mpi":
            found.append(mpi)
        if (versions := self.as_it_is.versions) < LEAST_VERSIONS:
            found.append(f"by its own stop rules the job ends when a policy has had {versions:.0f} versions")
        return found

    @property
    def batch_share(self) -> float:
        """P = B_s / N_s, a batch's share of its rollout or replay (Equation 2): the same in every split."""
        if self.model.job.learns_from_replay:
            return self.model.job.replay_settings.batch_size / self.model.job.distribution.buffer.capacity
        settings = self.model.job.training.settings
        assert isinstance(settings, OnPolicySettings), "no other is valid"
        rollout = settings.rollout_steps
        return (getattr(settings, "minibatch_size", None) or rollout) / rollout

    def document(self) -> dict[str, Any]:
        """Build the JSON object; see the head of this module."""
        best = self.recommended
        split, limits = best.split, finite(best.prediction.limits)
        return {
            **document_head(self.measured.environment, self.warnings),
            "config": self.config,
            "overrides": list(self.overrides),
            "measurements": self.measured.measurements.model_dump(mode="json"),
            "cluster": asdict(self.model.cluster),
            "as_it_is": _prediction(self.as_it_is),
            "candidates": [self._candidate(candidate) for candidate in self.listed],
            "race": None
            if self.race is None
            else {
                "seconds": self.race.seconds,
                "is_clear": self.race.is_clear,
                "fell_back": self.race.fell_back,
                "rows": [_contender(contender) for contender in self.race.contenders],
                "failed": [{**_split(one.candidate.split), "why": one.failure} for one in self.race.failed],
            },
            "recommended": _split(split),
            "writable": _split(split) if best.why_not is None else None,
            "equation_4": {
                "learner_cores": split.cores_of_learners,
                "actor_cores": split.cores_of_actors,
                "cores": self.model.cluster.cores,
                "production": limits["production"],
                "consumption": limits["consumption"],
                "batch_share": self.batch_share,
            },
            "bottleneck": asdict(best.prediction.bottleneck),
            "extrapolated": list(self.extrapolated),
            "verify": [_contender(contender) for contender in self.verified],
        }

    def _candidate(self, candidate: Candidate) -> dict[str, Any]:
        return {
            **_prediction(candidate.prediction),
            "settings": list(candidate.settings),
            "changes": list(candidate.changes),
            "runnable": candidate.why_not is None,
            "why_not": candidate.why_not,
            "extrapolated": list(self.model.extrapolated(candidate.split)),
        }


def _split(split: Split) -> dict[str, int | bool]:
    return {**split.numbers, "pinned": split.pinned}


def _prediction(prediction: Prediction) -> dict[str, Any]:
    return {
        **asdict(prediction.split),
        "cores": prediction.split.cores,
        **{name: finite(prediction.limits[name]) for name in ("production", "reception", "consumption")},
        "throughput": finite(prediction.throughput),
        "env_steps_per_s": finite(prediction.steps_per_s),
        "limits": finite(prediction.limits),
        "bottleneck": asdict(prediction.bottleneck),
    }


def _contender(contender: Contender) -> dict[str, Any]:
    predicted = contender.candidate.prediction.throughput
    return {
        **_split(contender.candidate.split),
        "predicted": predicted,
        "measured": contender.measured,
        "measured_runs": list(contender.uses_per_s),
        "spread": contender.rates.apart,
        "measured_steps_per_s": contender.measured_steps,
        "error": predicted / contender.measured - 1,
    }


def read_earlier(path: Path, job: JobConfig) -> Measured:
    """Read measurements of a config from a file of an earlier `tianji profile --json`.

    Raises:
        UsageError: the file has none, or they do not fit this config.
    """
    try:
        with os_errors_as(UsageError, f"cannot read {path}", "--from takes another file"):
            document = json.loads(path.read_text(encoding="utf-8"))
        schema = document["measurements"].get("schema_number", SCHEMA)
        if schema != SCHEMA:
            raise UsageError(
                f"{path} has measurements of schema {schema} and this version reads {SCHEMA}; "
                "measure anew, without --from"
            )
        measurements = Measurements.model_validate_json(json.dumps(document["measurements"]))
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise UsageError(
            f"{path} holds no measurements: {_reason(cause)}; "
            "--from takes what `tianji profile --json PATH` has written"
        ) from cause
    if measurements.fingerprint != fingerprint(job) or not measurements.parts:
        raise UsageError(
            f"{path} was measured for other settings of {measurements.config}; measure anew, without --from"
        )
    if job.environment.num_envs != measurements.parts[0].num_envs:
        raise UsageError(
            f"{path} was measured with {measurements.parts[0].num_envs} environments an actor, and "
            f"environment.num_envs is {job.environment.num_envs}; measure anew, without --from"
        )
    environment = document.get("environment", {})
    return Measured(measurements, {str(key): str(value) for key, value in environment.items()})


def _reason(cause: Exception) -> str:
    if isinstance(cause, ValidationError):
        first = cause.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return f"measurements.{where}: {first['msg'].lower()}"
    if isinstance(cause, KeyError):
        return f"no {cause}"
    if isinstance(cause, json.JSONDecodeError):
        return f"not JSON, line {cause.lineno}"
    return "another kind of file"
