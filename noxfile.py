"""Sessions of the project. `nox` runs those that a change has to pass; run the others by name.

Versions of tools come from constraints.txt, dependencies from pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["tests", "lint", "types", "build", "docs"]
nox.options.error_on_missing_interpreters = True

# Many containers set this variable; then each of the tests' hundreds of commands would compile every module.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
CONSTRAINTS = "--constraint=constraints.txt"
WITH_ENGINES = ".[dev,mpi,ucx]"
PEERS = ROOT / "benchmarks" / "peers"
SIDE_BY_SIDE = ("-n", str(min(2 * len(os.sched_getaffinity(0)), 16)), "--dist=worksteal")
"""pytest's options for two tests on each core, since most tests wait; each worker may take a gigabyte."""
QUICK = (
    *("tests/contract/test_inproc.py", "tests/contract/test_shm.py", "tests/transports/test_shm.py"),
    *("tests/algos/test_ppo_loss.py", "tests/algos/test_dqn_loss.py", "tests/algos/test_impala_loss.py"),
    *("tests/cli/wire", "tests/cli/files", "tests/cli/root", "tests/cli/actor", "tests/cli/buffer"),
    *("tests/cli/learner", "tests/cli/roles", "tests/lab/model"),
    *(f"tests/cli/config/test_config_{one}.py" for one in ("checks", "load", "roles")),
    "tests/cli/lifecycle/test_lifecycle_finish.py::test_each_kind_of_algorithm_trains_and_its_policy_plays",
)
PACKAGES = {
    "tianji",
    "tianji_cli",
    "tianji_lab",
    "tianji_plugins",
    "tianji_transports",
    "tianji_algos",
    "tianji_envs",
}


def install(session: nox.Session, *what: str) -> None:
    # Python compiles modules when it imports them; pip would compile all on one core, most for nothing.
    session.install("--no-compile", CONSTRAINTS, *what)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests that need the machine to themselves, then others side by side; arguments go to pytest."""
    install(session, "-e", WITH_ENGINES)
    some = (0, 5) if session.posargs else (0,)  # The chosen tests may all be of one kind.
    # Tests that run alone come first: so one process compiles all test modules, and not each worker anew.
    alone = ("pytest", "-m", "alone and not soak")
    session.run(*alone, *session.posargs, success_codes=some)
    command = ("pytest", *SIDE_BY_SIDE, "-m", "not alone and not soak")
    session.run(*command, *session.posargs, success_codes=some)


@nox.session(reuse_venv=True)
def quick(session: nox.Session) -> None:
    """Run tests of one minute (once the environment exists): two engines, a training of each kind."""
    if not (Path(session.bin) / "tianji").exists():
        install(session, "-e", WITH_ENGINES)
    command = ("pytest", *SIDE_BY_SIDE, "-m", "not soak and not alone", *QUICK)
    session.run(*command, *session.posargs)


@nox.session(reuse_venv=True)
def lowest(session: nox.Session) -> None:
    """Show help, train, bench and export with the lowest versions that pyproject.toml allows.

    On x86-64 the lowest torch brings several gigabytes of CUDA.
    """
    extras = ("mpi", "export", "sweep")
    project = nox.project.load_toml(ROOT / "pyproject.toml")["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in extras for one in project["optional-dependencies"][extra]),
    ]
    place = Path(session.create_tmp())
    versions = place / "lowest.txt"
    versions.write_text("".join(re.sub(r">=([\d.]+).*", r"==\1\n", one) for one in wanted))
    session.install("--no-compile", f"--constraint={versions}", "-e", f".[{','.join(extras)}]")
    try_out(session, place)


@nox.session(python=["3.11", "3.13"], reuse_venv=True)
def pythons(session: nox.Session) -> None:
    """Show help, train, bench and export with the pinned versions and another Python."""
    install(session, "-e", ".[mpi,export]")
    try_out(session, Path(session.create_tmp()))


def try_out(session: nox.Session, place: Path) -> None:
    shutil.rmtree(place / "runs", ignore_errors=True)
    session.chdir(place)
    short = ["--set", "experiment.stop.env_steps=8192", "--set", "experiment.eval_episodes=2", "--quiet"]
    for words in ("--help", "train --help", "bench comm --help", "list agents"):
        session.run("tianji", *words.split(), silent=True)
    session.run("tianji", "train", "--nonsense", success_codes=[2])
    for env, agent in (("CartPole-v1", "ppo"), ("Taxi-v4", "dqn")):
        session.run("tianji", "train", "--env", env, "--agent", agent, "--out", "runs", *short)
    session.run(
        "tianji", "export", "runs/ppo_CartPole-v1/1", "--format", "onnx", "--out", "x.onnx", "--check"
    )
    session.run("tianji", "bench", "comm", "--messages", "20")


@nox.session
def soak(session: nox.Session) -> None:
    """Run the tests that take minutes: long learning runs and random kills."""
    install(session, "-e", WITH_ENGINES)
    session.run("pytest", "-m", "soak", "--timeout=1800", *session.posargs)


@nox.session(venv_params=["--system-site-packages"])
def gpu(session: nox.Session) -> None:
    """Test and measure on a machine with a GPU, in parts of at most nine minutes; arguments go to gpu.py.

    Takes torch from the machine's Python, or the newest if it has none: the pinned torch is without CUDA.
    """
    session.install("--no-compile", "-e", ".[dev]")
    session.run("python", "benchmarks/gpu.py", *session.posargs)


@nox.session
def times(session: nox.Session) -> None:
    """Run the tests one after another, and print the time of each part and how much of it is work."""
    install(session, "-e", WITH_ENGINES)
    rows = Path(session.create_tmp()) / "times.jsonl"
    rows.unlink(missing_ok=True)
    session.env["PYTHONPATH"] = "benchmarks"
    session.run("pytest", "-p", "suite_times", "--times", str(rows), *session.posargs)
    session.run("python", "benchmarks/suite_times.py", str(rows))


@nox.session
def mutants(session: nox.Session) -> None:
    """Put the mistakes of benchmarks/mutants into a copy of the last commit, and check if tests find them.

    Keep the results of a hunt of all mutants in last_hunt.jsonl: the next hunt tries the tests in it first.
    """
    copy = Path(session.create_tmp()) / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    session.run("git", "clone", "--quiet", str(ROOT), str(copy), external=True)
    found = ROOT / "build" / "mutants.jsonl"
    found.parent.mkdir(exist_ok=True)
    session.chdir(copy)
    install(session, "-e", WITH_ENGINES)
    session.run("python", "benchmarks/mutants/hunt.py", "--out", str(found), *session.posargs)


@nox.session(name="mutants-draw")
def mutants_draw(session: nox.Session) -> None:
    """Draw mistakes anew, for example when the code has moved; arguments go to draw.py."""
    install(session, "cosmic-ray")
    session.run("python", "benchmarks/mutants/draw.py", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types strictly, in the tests' environment: another environment would take a minute to make."""
    mypy = ROOT / ".nox" / "tests" / "bin" / "mypy"
    if not mypy.exists():
        session.error("first: nox --install-only -s tests")
    # mypy runs in one process, since its workers give up if a busy machine does not start them within 3 s.
    session.run(str(mypy), external=True)


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the site strictly, and test the contents of its pages; arguments are pages to test.

    Takes the tests' environment, which has the packages for the pages' commands.
    """
    python = ROOT / ".nox" / "tests" / "bin" / "python"
    if not python.exists():
        session.error("first: nox --install-only -s tests")
    # With --quiet mkdocs counts no warnings, so nothing is strict; silent shows the output on failure.
    site = ("-m", "mkdocs", "build", "--strict")
    session.run(str(python), *site, external=True, silent=True, env={"NO_MKDOCS_2_WARNING": "1"})
    session.run(str(python), "docs/site/check.py", *session.posargs, external=True)


@nox.session
def build(session: nox.Session) -> None:
    """Build the sdist and from it the wheel, and that of the transports, and check the wheels' contents."""
    install(session, "build")
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), str(ROOT), silent=True)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    alone = ("--wheel", "--outdir", str(dist / "transports"), str(ROOT / "transports"))
    session.run("python", "-m", "build", *alone, silent=True)
    (transports,) = (dist / "transports").glob("tianji_transports-*.whl")
    typed = {name for name in zipfile.ZipFile(transports).namelist() if name.endswith("/py.typed")}
    if typed != {"tianji_plugins/py.typed", "tianji_transports/py.typed"}:
        session.error(f"the wheel of the transports has the packages of {sorted(typed)}")
    with tarfile.open(sdist) as archive:
        session.log(f"{sdist.name}: {len(archive.getnames())} files")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    configs = {Path(name).name for name in names if name.startswith("tianji_cli/configs/")}
    shipped = {path.name for path in (ROOT / "configs").glob("*.toml")}
    if top != PACKAGES:
        session.error(f"the wheel holds {sorted(top)}, not {sorted(PACKAGES)}")
    if configs != shipped:
        session.error(f"the wheel's configs are {sorted(configs)}, not {sorted(shipped)}")
    if "tianji_cli/runs/report/page.html" not in names:
        session.error("the wheel lacks the page of tianji report")
    pages = {f"tianji_cli/{page.relative_to(ROOT)}" for page in (ROOT / "docs").rglob("*.md")}
    if lacking := pages.difference(names):
        session.error(f"the wheel lacks the documents {sorted(lacking)}")
    untyped = {package for package in PACKAGES if f"{package}/py.typed" not in names}
    if untyped:
        session.error(f"no py.typed in {sorted(untyped)}")
    session.log(f"{wheel.name}: {sorted(top)} and {len(configs)} configs")


@nox.session
def release(session: nox.Session) -> None:
    """Build what a release consists of, and start the wheel outside any checkout; arguments go to pip."""
    install(session, "build")
    dist = ROOT / "build" / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for place in (ROOT, ROOT / "transports"):
        session.run("python", "-m", "build", "--outdir", str(dist), str(place), silent=True)
    place = Path(session.create_tmp())
    (wheel,) = dist.glob("tianji-*.whl")
    session.run("python", "-m", "venv", "--clear", str(place / "fresh"))
    pip = ("install", "--quiet", CONSTRAINTS, *session.posargs, str(wheel))
    session.run(str(place / "fresh/bin/pip"), *pip, external=True)
    session.chdir(place)
    tianji = str(place / "fresh/bin/tianji")
    for words in ("--version", "list configs", "doctor"):
        session.run(tianji, *words.split(), external=True, silent=True, success_codes=[0, 1])
    short = ("--set", "experiment.stop.env_steps=8192", "--quiet")
    session.run(tianji, "train", "ppo_cartpole", "--out", "runs", *short, external=True)
    session.log(f"{dist}: {', '.join(sorted(path.name for path in dist.iterdir()))}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the transports and raw loops, an actor alone, and the time of the command line."""
    install(session, "-e", WITH_ENGINES)
    session.run("tianji", "bench", "comm", "--raw")
    for script in ("actor.py", "startup.py"):
        session.run("python", f"benchmarks/{script}", *session.posargs)


@nox.session
def learning(session: nox.Session) -> None:
    """Train the shipped configs over seeds, and compare their evaluations with the targets."""
    install(session, "-e", ".[dev]")
    session.run("python", "benchmarks/learning.py", *session.posargs)


@nox.session(name="peers-sb3", python="3.11", reuse_venv=True)
def peers_sb3(session: nox.Session) -> None:
    """Train CartPole with Stable-Baselines3, in its own environment."""
    train_peer(session, "requirements-sb3.txt", "sb3.py")


@nox.session(name="peers-sbx", python="3.11", reuse_venv=True)
def peers_sbx(session: nox.Session) -> None:
    """Train CartPole with SBX, in its own environment."""
    train_peer(session, "requirements-sbx.txt", "sbx_peer.py")


@nox.session(name="peers-rllib", python="3.11", reuse_venv=True)
def peers_rllib(session: nox.Session) -> None:
    """Train CartPole with RLlib, in its own environment."""
    train_peer(session, "requirements-rllib.txt", "rllib.py")


@nox.session(name="peers-sample-factory", python="3.11", reuse_venv=True)
def peers_sample_factory(session: nox.Session) -> None:
    """Train CartPole with Sample Factory, in its own environment."""
    train_peer(session, "requirements-sample-factory.txt", "sample_factory_peer.py")


@nox.session(name="peers-cleanrl", python="3.11", reuse_venv=True)
def peers_cleanrl(session: nox.Session) -> None:
    """Train CartPole with CleanRL, in its own environment; `-- --script PATH` names its ppo.py."""
    train_peer(session, "requirements-cleanrl.txt", "cleanrl_peer.py")


def train_peer(session: nox.Session, requirements: str, script: str) -> None:
    session.install("-r", str(PEERS / requirements))
    session.run("python", str(PEERS / script), *session.posargs)


@nox.session(name="peers-compare", python="3.11", reuse_venv=True)
def peers_compare(session: nox.Session) -> None:
    """Time tianji and its peers, seed by seed; run `nox --install-only -s peers-...` first."""
    install(session, "-e", ".")
    environments = Path(session.virtualenv.location).parent
    command = ["python", str(PEERS / "compare.py"), "--tianji", f"{session.bin}/tianji"]
    command += ["--serial", f"{session.bin}/python"]
    peers = ["sb3", "sbx", "rllib", "sample-factory"]
    if any(word.startswith("--cleanrl-script") for word in session.posargs):
        peers.append("cleanrl")
    for peer in peers:
        python = environments / f"peers-{peer}" / "bin" / "python"
        if not python.exists():
            session.error(f"first: nox --install-only -s peers-{peer}")
        command += [f"--{peer}", str(python)]
    session.run(*command, *session.posargs)
