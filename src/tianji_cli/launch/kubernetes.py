"""The manifests of a job on Kubernetes: an Indexed Job whose pod 0 is the root, and what the pods need.

Each pod is a host of the job. Pods beside the root's join it, and ask again whenever they are dismissed, so
that those that are not there are empty seats, and the Job is over when its root is.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import indent
from typing import Final

from tianji_cli.config.loader import dump_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.plan.plan import cores_at_work, expected_hosts, make_plan
from tianji_cli.quantities import memory
from tianji_cli.wire.address import JobKey

PORT: Final = 5555
MOST_BYTES: Final = 1_000_000
"""Maximum bytes of a ConfigMap, nearly."""

SCRIPT: Final = """\
set -e
umask 077
mine=$(mktemp -d)
cp -rL /etc/tianji/config /etc/tianji/key "$mine"
root={name}-0.{name}
if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
    # A host that is lost or dismissed asks again: the Job is over when its root is.
    trap 'kill "$joined" 2>/dev/null || true; exit 143' TERM
    while :; do
        if getent hosts "$root" >/dev/null; then
            tianji join "tcp://$root:{port}" --key "$mine/key/job.key" &
            joined=$!
            wait "$joined" || true
        fi
        sleep 5 & wait $!
    done
fi
run=/runs/{run}
if [ -e "$run/checkpoints/last" ]; then
    what="--resume $run"
else
    rm -rf "$run"
    mkdir -p "$run/checkpoints" "$run/logs" "$run/plots"
    what="$mine/config/config.toml --run $run"
fi
rm -f "$run/job.key"
cp "$mine/key/job.key" "$run/job.key"
exec tianji train $what --listen "tcp://$POD_IP:{port}"
"""
"""Commands of each pod, which copy the key and the config: there they are links that others can read."""

MANIFESTS: Final = """\
# Written by `tianji launch k8s`. `kubectl apply -f` starts it; pod {name}-0-... is its root.
# The Secret has the job's key: keep this file to yourself.
apiVersion: v1
kind: Secret
metadata:
  name: {name}
stringData:
  job.key: {key}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  config.toml: |
{config}{files}---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    tianji: {name}
  ports:
    - name: control
      port: {port}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
{spec}"""

JOB: Final = """\
completionMode: Indexed
completions: {most}
parallelism: {most}
# Pod 0 is the root: the Job has succeeded when the root has.
successPolicy:
  rules:
    - succeededIndexes: "0"
backoffLimitPerIndex: 6
podFailurePolicy:
  rules:
    # Preempted, drained or evicted: the pod comes again, and takes a seat or goes on.
    - action: Ignore
      onPodConditions:
        - type: DisruptionTarget
    # What no second attempt would mend, such as a config that cannot be run.
    - action: FailJob
      onExitCodes:
        containerName: tianji
        operator: In
        values: [2]
template:
  metadata:
    labels:
      tianji: {name}
  spec:
    subdomain: {name}
    restartPolicy: Never
    # The root saves when it is told to stop.
    terminationGracePeriodSeconds: 120
    containers:
      - name: tianji
        image: {image}
        command: [sh, -c]
        args:
          - |
{script}
        env:
          - name: POD_IP
            valueFrom:
              fieldRef:
                fieldPath: status.podIP
        resources:
          requests: {requests}
          limits: {limits}
        volumeMounts:
          - {{name: shm, mountPath: /dev/shm}}
          - {{name: config, mountPath: /etc/tianji/config}}
          - {{name: key, mountPath: /etc/tianji/key}}
          - {{name: runs, mountPath: /runs}}
    volumes:
      # Samples move through shared memory, of which a pod has 64 MB otherwise.
      - name: shm
        emptyDir: {{medium: Memory, sizeLimit: {shm}}}
      - name: config
        configMap: {{name: {name}{items}}}
      - name: key
        secret: {{secretName: {name}}}
      - name: runs
        {runs}
"""

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
_YAML_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?([kKMGT]i?)?")


@dataclass(frozen=True)
class Pods:
    """Resources and options of a job's pods.

    Attributes:
        image: image with tianji, and the packages of the environment.
        shm: size of each pod's shared memory, in Kubernetes's notation.
        memory: memory of each pod; not limited if None.
        gpus: GPUs of each pod.
        claim: PersistentVolumeClaim for the run, which all pods mount; None keeps it in the root's pod, with
            which it goes.
    """

    image: str
    shm: str = "1Gi"
    memory: str | None = None
    gpus: int = 0
    claim: str | None = None


def manifests(job: JobConfig, name: str, files: Mapping[str, bytes], pods: Pods, key: JobKey) -> str:
    """Write the manifests of a job, as YAML.

    Args:
        job: the job; ``distribution.hosts`` says how many pods there are.
        name: of the Job and of all that belongs to it.
        files: the user's modules and data files, by their places.

    Raises:
        UsageError: they would not be accepted.
    """
    _check(name, files, pods)
    plan = make_plan(job, expected_hosts(job))
    cores = max(cores_at_work(plan))
    asked = {"memory": pods.memory} if pods.memory else {}
    limits = asked | ({"nvidia.com/gpu": str(pods.gpus)} if pods.gpus else {})
    keys = {place: f"file-{number}" for number, place in enumerate(files)}
    data = "".join(f"  {keys[place]}: {b64encode(content).decode()}\n" for place, content in files.items())
    items = [{"key": "config.toml", "path": "config.toml"}]
    items += [{"key": keys[place], "path": place} for place in files]
    # Each launch has a run of its own, which its pods find again.
    run = f"{name}-{hashlib.sha256(key.public.encode()).hexdigest()[:8]}"
    script = SCRIPT.format(name=name, port=PORT, run=run)
    spec = JOB.format(
        name=name,
        most=job.distribution.hosts.max,
        image=json.dumps(pods.image),
        script=indent(script.rstrip("\n"), " " * 12),
        requests=json.dumps({"cpu": str(cores)} | asked),
        limits=json.dumps(limits),
        shm=pods.shm,
        items=f", items: {json.dumps(items)}" if files else "",
        runs="emptyDir: {}" if pods.claim is None else f"persistentVolumeClaim: {{claimName: {pods.claim}}}",
    )
    return MANIFESTS.format(
        name=name,
        key=json.dumps(json.dumps(asdict(key))),
        config=indent(dump_config(_portable(job)), " " * 4),
        files=f"binaryData:\n{data}" if files else "",
        port=PORT,
        spec=indent(spec, "  "),
    )


def apply(text: str) -> None:
    """Have kubectl apply manifests.

    Raises:
        UsageError: there is no kubectl.
        RunFailed: it does not take them.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise UsageError("kubectl is not on this machine's PATH: --print shows what it would apply")
    done = subprocess.run([kubectl, "apply", "-f", "-"], input=text, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"kubectl ended with status {done.returncode}")


def _portable(job: JobConfig) -> JobConfig:
    """Name the user's files from where the config lies, as all of them lie beside it in a pod."""
    experiment = job.experiment
    roots = [Path(directory).resolve() for directory in experiment.extensions]
    files = [
        Path(name).relative_to(root).as_posix()
        for name in experiment.files
        for root in roots
        if Path(name).is_relative_to(root)
    ]
    update = {"extensions": (".",), "files": tuple(files)}
    return job.model_copy(update={"experiment": experiment.model_copy(update=update)})


def _check(name: str, files: Mapping[str, bytes], pods: Pods) -> None:
    if not _NAME.fullmatch(name) or name in _YAML_WORDS:
        raise UsageError(
            f"{name!r} cannot name a Job: at most 52 small letters, digits and '-', a letter first; "
            "--name chooses another"
        )
    for option, size in (("--shm", pods.shm), ("--memory", pods.memory or "1Gi")):
        if not _QUANTITY.fullmatch(size):
            raise UsageError(f"{option} {size} is no size of Kubernetes; 2Gi is one")
    if pods.claim is not None and not _NAME.fullmatch(pods.claim):
        raise UsageError(f"--claim {pods.claim} is no name of a PersistentVolumeClaim")
    total = sum(len(content) * 4 // 3 + len(place) for place, content in files.items())
    if total > MOST_BYTES:
        raise UsageError(
            f"the modules and experiment.files have {memory(total)}, and a ConfigMap holds 1 MB: put them "
            "into the image, or on a volume"
        )
