"""The user's modules as they are on disk, read before anything imports them."""

from pathlib import Path

import pytest

from tianji_cli.files.modules import read_modules


def test_modules_are_found_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["alone_1", "plain_1.inner.module", "package_1.inner.module", "package_1"]
    for name in ("alone_1", "plain_1/inner/module", "package_1/inner/module", "package_1/__init__"):
        (tmp_path / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("raise ValueError('it was imported')")
    found = read_modules([*names, "missing_1.module", "numpy.linalg", "tianji_cli.main", "json"])
    assert sorted(found) == sorted(names)
    assert {kept.source for kept in found.values()} == {"raise ValueError('it was imported')"}
