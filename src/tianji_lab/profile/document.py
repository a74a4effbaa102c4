"""What `tianji profile` has found as JSON, and how measurements are taken out of that again.

All rates are in sample uses a second (env steps times ``rho``), over all groups; null is no limit. The object
has ``schema`` (1), ``config``, ``overrides``, ``environment`` (descriptions by subject), ``warnings``
(sentences), ``measurements`` (as ``Measurements`` has them: `tianji profile --from` takes them from here),
``cluster`` (whose cores are split), ``as_it_is`` (the config's own split on its own hosts), ``candidates``
(best first, each with ``runnable`` and ``extrapolated``), ``recommended`` (the first), ``writable`` (the
first that can be run; null if none can), ``bottleneck`` (of the recommended), ``extrapolated`` (what of the
recommended was reckoned and not measured), ``simulated`` and ``breaks_first`` (both null where all was
measured) and ``verify``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.quantities import finite
from tianji_cli.runs.results import document_head
from tianji_lab.model.costs import CostTable, Split
from tianji_lab.model.prediction import Prediction
from tianji_lab.model.simulation import Simulation
from tianji_lab.profile.measurements import SCHEMA as MEASUREMENTS_SCHEMA
from tianji_lab.profile.measurements import Measured, Measurements
from tianji_lab.profile.result import ProfileResult
from tianji_lab.profile.search import Candidate
from tianji_lab.profile.settings import fingerprint
from tianji_lab.profile.verify import Verified


def document(found: ProfileResult, checks: Sequence[Verified] = ()) -> dict[str, Any]:
    """Put everything into one JSON object, see the head of this module."""
    subject, recommended, writable = found.subject, found.recommended, found.runnable
    return {
        **document_head(subject.environment, subject.warnings),
        "config": subject.config,
        "overrides": list(subject.overrides),
        "measurements": subject.measurements.model_dump(mode="json"),
        "cluster": asdict(found.cluster),
        "as_it_is": prediction_document(found.as_it_is),
        "candidates": [_candidate(candidate, found.table) for candidate in found.candidates],
        "recommended": split_document(recommended.split),
        "writable": None if writable is None else split_document(writable.split),
        "bottleneck": asdict(recommended.prediction.bottleneck),
        "extrapolated": list(found.extrapolated),
        "simulated": None
        if found.simulated is None
        else _simulation(found.simulated, subject.measurements.rho),
        "breaks_first": None if found.breaks_first is None else asdict(found.breaks_first),
        "verify": [_verified(check) for check in checks],
    }


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """Write a prediction, all rates in sample uses a second."""
    return {
        **split_document(prediction.split),
        "actor_cores": prediction.split.actor_cores,
        "buffer_cores": prediction.split.buffer_cores,
        "cores": prediction.split.cores,
        "production": finite(prediction.production * prediction.rho),
        "reception": finite(prediction.reception * prediction.rho),
        "consumption": finite(prediction.consumption),
        "throughput": finite(prediction.throughput),
        "env_steps_per_s": finite(prediction.throughput / prediction.rho),
        "limits": {name: finite(limit) for name, limit in prediction.limits.items()},
        "bottleneck": asdict(prediction.bottleneck),
    }


def split_document(split: Split) -> dict[str, int | bool]:
    """Write what of a split is chosen."""
    return {
        "learners": split.learners,
        "learner_cores": split.learner_cores,
        "actors": split.actors,
        "num_envs": split.num_envs,
        "groups": split.groups,
        "pinned": split.pinned,
    }


def read_earlier(path: Path, job: JobConfig) -> Measured:
    """Take measurements of a config out of what an earlier `tianji profile --json` wrote.

    Raises:
        UsageError: there are none, or they are of no use for this config.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        measurements = Measurements.model_validate_json(json.dumps(read["measurements"]))
    except OSError as cause:
        raise UsageError(f"cannot read {path}: {cause.strerror}; --from takes another file") from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise UsageError(
            f"{path} holds no measurements: {_reason(cause)}; "
            "--from takes what `tianji profile --json PATH` has written"
        ) from cause
    if measurements.schema_number != MEASUREMENTS_SCHEMA:
        raise UsageError(
            f"{path} has measurements of schema {measurements.schema_number} and this version reads "
            f"{MEASUREMENTS_SCHEMA}; measure anew, without --from"
        )
    if not _is_complete(measurements):
        raise UsageError(f"{path} lacks some of what was measured; measure anew, without --from")
    if measurements.fingerprint != fingerprint(job):
        raise UsageError(
            f"{path} was measured for other settings of {measurements.config}; measure anew, without --from"
        )
    if job.environment.num_envs not in measurements.sizes:
        sizes = ", ".join(map(str, measurements.sizes))
        raise UsageError(
            f"{path} was measured with {sizes} environments an actor, and environment.num_envs is "
            f"{job.environment.num_envs}; measure anew, without --from"
        )
    said = read.get("environment", {})
    return Measured(measurements, {str(key): str(value) for key, value in said.items()})


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


def _is_complete(measurements: Measurements) -> bool:
    """Whether there is what predictions need: an actor and a learner for some number of environments."""
    options = set(measurements.sizes)
    of_actors = {figures.num_envs for figures in measurements.actors}
    of_learners = {figures.num_envs for figures in measurements.learners if figures.cores == 1}
    return bool(options) and options <= of_actors & of_learners & measurements.fragment_bytes.keys()


def _candidate(candidate: Candidate, table: CostTable) -> dict[str, Any]:
    return {
        **prediction_document(candidate.prediction),
        "settings": list(candidate.settings),
        "changes": list(candidate.changes),
        "runnable": candidate.runnable,
        "why_not": candidate.why_not,
        "extrapolated": list(table.at(candidate.split).extrapolated),
    }


def _simulation(simulated: Simulation, rho: float) -> dict[str, float]:
    return {
        "production": simulated.production * rho,
        "reception": simulated.reception * rho,
        "consumption": simulated.consumption,
        "throughput": simulated.throughput,
        "policy_lag": simulated.policy_lag,
    }


def _verified(check: Verified) -> dict[str, Any]:
    return {
        **split_document(check.split),
        "predicted": check.predicted,
        "measured": check.measured,
        "measured_runs": list(check.uses_per_s.values),
        "spread": check.uses_per_s.spread,
        "measured_steps_per_s": check.steps_per_s.median,
    }
