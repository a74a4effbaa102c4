"""`tianji launch k8s`: manifests that Kubernetes' schemas accept, and what it refuses."""

import base64
import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tianji_cli.main import main

ZMQ = 'distribution.transport={ local = "shm", remote = "zmq" }'
IMAGE = "--image=registry.example/tianji:1"
VERSION = "1.37.0"


def launch(*options: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["launch", "k8s", *options])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def manifests(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert launch(*options, IMAGE, "--print", "--set", ZMQ) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize(
    "options",
    [
        ("ppo_cartpole", "--hosts=1-8", "--set=distribution.actor.num=32"),
        ("dqn_cartpole", "--hosts=3", "--claim=runs", "--gpus=1", "--memory=4Gi", "--shm=512Mi"),
        ("ppo_cartpole",),
    ],
)
def test_the_schemas_of_kubernetes_accept_the_manifests(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    found = manifests(capsys, *options)
    assert set(found) == {"Secret", "ConfigMap", "Service", "Job"}
    (container,) = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert subprocess.run(["sh", "-n", "-c", *container["args"]], check=False).returncode == 0


def test_a_job_has_a_pod_for_each_host_and_ends_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    found = manifests(capsys, "ppo_cartpole", "--hosts=1-8", "--set=distribution.actor.num=32", "--gpus=2")
    spec = found["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (8, 8)
    assert spec["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == found["Service"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert int(container["resources"]["requests"]["cpu"]) >= 4, "32 actors on eight hosts"
    shm = next(volume for volume in pod["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    config = found["ConfigMap"]["data"]["config.toml"]
    assert "[distribution.hosts]\nmin = 1\nmax = 8\n" in config


def test_the_user_s_files_go_along(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maze.py").write_text("import gymnasium, walls\nclass Maze(gymnasium.Env): ...\n")
    (tmp_path / "walls.py").write_text("HEIGHT = 3\n")
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps/a.map").write_bytes(b"\0\1")
    (tmp_path / "maze.toml").write_text(
        'extends = "configs/ppo_cartpole.toml"\n[experiment]\nextensions = ["."]\nfiles = ["maps"]\n'
        '[environment]\ntype = "maze:Maze"\nid = ""\n'
    )
    found = manifests(capsys, "maze.toml", "--hosts=2")
    volumes = found["Job"]["spec"]["template"]["spec"]["volumes"]
    items = next(volume["configMap"]["items"] for volume in volumes if volume["name"] == "config")
    data = found["ConfigMap"]["binaryData"]
    files = {one["path"]: base64.b64decode(data[one["key"]]) for one in items if one["key"] in data}
    assert files["maps/a.map"] == b"\0\1"
    assert {"maze.py", "walls.py"} < set(files)
    config = found["ConfigMap"]["data"]["config.toml"]
    assert str(tmp_path) not in config
    assert '"maps"' in config


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("ppo_cartpole", "--hosts=8-1"), "min (8) is more than max (1)"),
        (("ppo_cartpole", "--hosts=many"), "--hosts many is neither a number, as 4"),
        (("ppo_cartpole", "--shm=large"), "--shm large is no size of Kubernetes"),
        (("ppo_cartpole", "--name=x" + 60 * "y"), "cannot name a Job"),
        (("ppo_cartpole", "--claim=../x"), "is no name of a PersistentVolumeClaim"),
    ],
)
def test_what_kubernetes_would_not_take_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    assert launch(*options, IMAGE, "--print", "--set", ZMQ) == 2
    assert why in capsys.readouterr().err


def test_kubectl_gets_the_manifests_and_its_absence_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch("ppo_cartpole", IMAGE) == 2
    assert "kubectl is not on this machine's PATH: --print" in capsys.readouterr().err
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\n/bin/cat > "{tmp_path}/applied"; echo "$@" > "{tmp_path}/words"\n')
    kubectl.chmod(0o755)
    assert launch("ppo_cartpole", IMAGE) == 0
    assert (tmp_path / "words").read_text() == "apply -f -\n"
    assert len(list(yaml.safe_load_all((tmp_path / "applied").read_text()))) == 4
    kubectl.write_text("#!/bin/sh\nexit 3\n")
    assert launch("ppo_cartpole", IMAGE) == 1
    assert "kubectl ended with status 3" in capsys.readouterr().err
    assert os.environ["PATH"] == str(tmp_path)
