"""`tianji eval`: greedy episodes with a checkpoint of a run."""

import json
from typing import Any

from PIL import Image


def test_eval_plays_a_checkpoint_and_says_what_is_wrong(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"wall_s": 3.0}, "checkpoint_every_s": 0.4}})
    run.finish()
    out = ("--out", "out")

    def figures(*options: str) -> dict[str, Any]:
        command = workplace.command("eval", "run", *out, "--episodes", "4", "--json", "-", *options)
        command.wait(0)
        document: dict[str, Any] = json.loads(command.stdout)
        return document

    first = figures("--seed", "5")
    assert list(first) == ["episodes", "mean", "std", "min", "max", "returns"]
    assert first["episodes"] == len(first["returns"]) == 4
    assert first["mean"] == sum(first["returns"]) / 4
    assert figures("--seed", "5") == first
    steps = sorted(int(path.name) for path in (run.path / "checkpoints").iterdir() if path.name.isdecimal())
    assert figures("--seed", "5", "--checkpoint", str(steps[-1])) == figures(
        "--seed", "5", "--checkpoint", "last"
    )

    wrong = workplace.command("eval", "run/1", *out, "--checkpoint", "3")
    wrong.wait(2)
    assert all(str(step) in wrong.last_words for step in [*steps, "best", "last"])
    missing = workplace.command("eval", "ru", *out)
    missing.wait(2)
    assert "did you mean 'run'" in missing.stderr

    shown = workplace.command("eval", str(run.path), "--episodes", "1", "--json", "figures.json")
    shown.wait(0)
    assert "greedy episodes" in shown.stdout
    assert json.loads((workplace.place / "figures.json").read_text())["episodes"] == 1


def test_eval_plays_the_checkpoint_that_the_config_asks_for(workplace: Any) -> None:
    run = workplace.train({"experiment": {"eval_checkpoint": "last"}})
    run.finish()
    shown = workplace.command("eval", str(run.path), "--episodes", "1")
    shown.wait(0)
    assert f"{run.path}, last: " in shown.stdout
    shown = workplace.command("eval", str(run.path), "--episodes", "1", "--checkpoint", "best")
    shown.wait(0)
    assert f"{run.path}, best: " in shown.stdout


def test_eval_renders_the_first_episode_and_no_other(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    command = ("eval", str(run.path), "--episodes", "2", "--json", "-", "--render")
    played = workplace.command(*command, "play.gif")
    played.wait(0)
    with Image.open(workplace.place / "play.gif") as gif:
        pictures: int = gif.n_frames  # type: ignore[attr-defined]
    assert pictures == json.loads(played.stdout)["returns"][0], "a step of CartPole is worth 1"
    refused = workplace.command(*command, "missing/play.gif")
    refused.wait(2)
    assert "cannot write missing/play.gif" in refused.stderr


def test_errors_of_environments_and_models_are_one_line_in_eval(workplace: Any) -> None:
    run = workplace.train()
    run.finish()
    config = run.path / "config.toml"
    text = config.read_text()
    for change, word in (
        (("CartPole-v1", "CartPole-v9"), "CartPole"),
        (("hidden = [", "hidden = [3, "), "model"),
        (("CartPole-v1", "Pendulum-v1"), "model"),
    ):
        config.write_text(text.replace(*change))
        broken = workplace.command("eval", str(run.path), "--episodes", "1")
        assert broken.wait() in {1, 2}
        assert word in broken.stderr
        assert len(broken.stderr.splitlines()) <= 5
