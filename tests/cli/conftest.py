"""A small disk, a quick config, and generated examples that repeat themselves on any machine."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from cli.quick import CONFIG
from hypothesis import settings

# Every run tries the same examples, and a busy machine may take its time over each.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount: {mounted.stderr.strip()}")
    # Out of the tree at once, so that no crash leaves a mount behind; it lives while the descriptor does.
    descriptor = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A config that is trained in seconds."""
    path = tmp_path / "quick.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    return str(path)
