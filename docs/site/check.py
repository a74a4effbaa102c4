"""Tests the contents of the documents: commands, configs, programs, and messages of the program.

    python docs/site/check.py [PAGE...]

- Every ``python`` block compiles; every ``toml`` block is TOML and names existing keys.
- Keys in sentences, such as ``training.gamma``, exist.
- The program itself parses every `tianji` command of an ``sh`` or ``console`` block, and the configs and keys
  of the command exist.
- A block with a title is a file. A block below ``<!-- runs -->`` runs, in order, in a directory of the page
  that has these files, or in the directory of an earlier ``cd``, as for a reader who types it all. So pages
  are programs that do as they show.
- Links of README.md and CONTRIBUTING.md lead to files; mkdocs checks the links of the site.
- Each line of troubleshooting.md's ``message`` blocks is a message that some source file makes.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import typer
from commands import parse
from figures import old_pictures

from tianji_cli.config.json_schema import config_schema
from tianji_cli.config.source import find_config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCES = [
    path
    for folder in ("src", "algos", "envs", "transports")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
BLOCK = re.compile(
    r"(?P<mark><!-- runs -->\n+)?^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
ONES_OWN = {"mine.toml", "my.toml", "my_tuned.toml", "config.toml", "plain_q.toml", "my_env.toml"}
"""Configs that a reader writes."""

RUN_LIMIT_S = 300

KEY = re.compile(r"`((?:experiment|environment|agent|model|training|distribution)\.[a-z_.]+)(?: = [^`]+)?`")
"""A key in a sentence, with or without a value."""
NO_KEYS = {"model.predict", "model.save", "model.safetensors", "training.safetensors"}
"""Methods of other libraries, and files, which look like keys."""

WHERE = re.compile(r"^(tianji: error: )?((--set|--env|\S+\.toml): )?(\w+\.[\w.\[\]]+: )*")
"""Prefix of a message: the program, the file, the key."""
WORD, VALUE = re.compile(r"[A-Za-z]{2,}"), re.compile(r"'[^']*'|\S*[/_=.\d()]\S*")
MADE_BY_THE_SOURCES = 0.8
"""Share of the letters of a message's words that texts of the sources have to cover."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of code of a page."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        indent = found["indent"]
        code = "".join(line.removeprefix(indent) for line in found["text"].splitlines(keepends=True))
        line = text.count("\n", 0, found.start("language")) + 1
        yield Block(page, line, found["language"], found["title"], code, found["mark"] is not None)


def commands_in(block: Block) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the `tianji` commands of a block: the words before the program, and the words after it."""
    text = block.text
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|<>"):
                at = next((i for i, one in enumerate(command) if one.rpartition("/")[2] == "tianji"), None)
                if at is not None and command[0] != "man":
                    yield command[:at], command[at + 1 :]
                command = []
            else:
                command.append(word)


def wrong_with_command(words: Sequence[str], own: Collection[str]) -> Iterator[str]:
    """Yield the faults of a command; ``own`` are configs and runs of the page itself."""
    if words[:1] == ["--install-completion"]:
        return  # Parsing this option would install the completion.
    try:
        given = parse(words)
    except typer.Exit:
        return
    except Exception as refused:  # noqa: BLE001 - typer has many, and each is a refusal
        yield f"{' '.join(words)}: {getattr(refused, 'message', refused)}"
        return
    configs = [given.get("config"), *(given.get(one) for one in ("first", "second"))]
    for config in configs:
        if isinstance(config, str) and config.partition("/")[0] not in own and not known_config(config):
            yield f"{' '.join(words)}: there is no config {config!r}"
    for override in given.get("overrides") or ():
        key = str(override).partition("=")[0]
        wrong = unknown_key(key.split("."))
        if wrong:
            yield f"{' '.join(words)}: {wrong}"


def known_config(name: str) -> bool:
    """Whether a name is that of an existing config or run, or of a config that a reader writes."""
    # A sweep writes best.toml.
    if name in ONES_OWN or name.isupper() or ":" in name or name.endswith("/best.toml"):
        return True
    if (ROOT / name).exists() or (DOCS / name).exists() or find_config(name, ROOT) is not None:
        return True
    # A run has the name of the config or example that was trained.
    stem = name.removeprefix("experiments/").partition("/")[0]
    trained = {
        path.stem for folder in ("configs", "docs/examples") for path in (ROOT / folder).glob("*.toml")
    }
    return not name.endswith(".toml") and stem in trained


SCHEMA = config_schema()


def unknown_key(path: Sequence[str]) -> str:
    """Describe the fault of a key's path; empty if the key exists."""
    at: list[Any] = [SCHEMA]
    for depth, key in enumerate(path):
        at = [one for table in at for one in _tables(table)]
        below = [one["properties"][key] for one in at if key in one.get("properties", {})]
        if not below and any(one.get("additionalProperties", True) for one in at):
            return ""  # A table of free keys, or settings of the user's own type.
        if not below:
            return f"there is no key {'.'.join(path[: depth + 1])}"
        at = below
    return ""


def _tables(one: Any) -> Iterator[Any]:
    while "$ref" in one:
        one = SCHEMA["$defs"][one["$ref"].rpartition("/")[2]]
    if "anyOf" in one:
        for some in one["anyOf"]:
            # A user's own type may have any key; it must not excuse a misspelt key of a known type.
            if some.get("description") != "Of your own.":
                yield from _tables(some)
    else:
        yield one


def keys_of(table: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the keys of a config."""
    component = at[:1] in {("agent",), ("model",), ("training",)}
    if component and ":" in str(table.get("type", "")):
        return
    for key, value in table.items():
        yield (*at, key)
        if isinstance(value, dict) and (*at, key)[:2] != ("environment", "options"):
            yield from keys_of(value, (*at, key))


def wrong_with(block: Block) -> Iterator[str]:
    """Yield the faults of a block, without running it."""
    if block.language == "python":
        try:
            compile(dedent(block.text), str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            yield f"{error.msg}, line {error.lineno}"
    elif block.language == "toml":
        try:
            table = tomllib.loads(block.text)
        except tomllib.TOMLDecodeError as error:
            yield str(error)
            return
        if set(table) <= set(SCHEMA["properties"]):
            own = ":" in str(table.get("training", {}).get("type", "")) or ":" in str(
                table.get("agent", {}).get("type", "")
            )
            yield from (unknown_key(path) for path in keys_of(table) if not own and unknown_key(path))
        elif set(table) != {"project"}:
            yield f"neither a config nor entry points: {', '.join(table)}"
    elif block.language in {"sh", "console"}:
        titles = {one.title for one in blocks_of(block.page) if one.title}
        named = re.findall(r"--name (\w+)", block.page.read_text(encoding="utf-8"))
        for _, words in commands_in(block):
            yield from wrong_with_command(words, {*titles, *named})


def unknown_keys(page: Path) -> Iterator[str]:
    """Find keys in sentences and tables that do not exist."""
    for named in set(KEY.findall(page.read_text(encoding="utf-8"))) - NO_KEYS:
        if wrong := unknown_key(named.split(".")):
            yield f"{page.relative_to(ROOT)}: {wrong}"


def run_page(page: Path) -> list[str]:
    """Run the blocks of a page below ``<!-- runs -->``, in a new directory; return the first failure."""
    blocks = [block for block in blocks_of(page) if block.title or block.runs]
    if not any(block.runs for block in blocks):
        return []
    with tempfile.TemporaryDirectory() as place, tempfile.NamedTemporaryFile() as where:
        at = Path(place)
        for name in ("docs", "configs"):
            (Path(place) / name).symlink_to(ROOT / name)
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for block in blocks:
            if block.title:
                (at / block.title).write_text(block.text)
            if not block.runs:
                continue
            text = block.text
            if block.language == "console":
                text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
            shell = ["bash", "-euo", "pipefail", "-c", f"{text}\npwd >{where.name}"]
            command = [sys.executable, "-c", text] if block.language == "python" else shell
            try:
                done = subprocess.run(
                    command,
                    cwd=at,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=RUN_LIMIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return [f"{block}: has not ended within {RUN_LIMIT_S} s"]
            if done.returncode:
                return [f"{block}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"]
            at = Path(Path(where.name).read_text().strip() or place)
    return []


def templates() -> list[re.Pattern[str]]:
    """All texts of the sources, as patterns with a gap in place of each value."""
    found: set[str] = set()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
                found.add(re.sub(r"\{[^{}]*\}", "\0", node.value))
    lines = {line for text in found for line in text.split("\n")}
    some = (text.strip() for text in lines if len(re.findall(r"[a-zA-Z]", text)) >= 5)
    # A value at the end is one word; a value in between is any text.
    return [re.compile(re.sub(r"\\*\0$", r"(\\S+)", re.escape(text)).replace("\0", "(.+?)")) for text in some]


def strange_messages(page: Path) -> Iterator[str]:
    """Find quoted messages that no source makes: texts of the sources must cover most of their letters."""
    patterns = templates()
    for block in blocks_of(page):
        if block.language != "message":
            continue
        for line in filter(None, (line.strip() for line in block.text.splitlines())):
            begin = len(line) - len(WHERE.sub("", line))
            said = {at for word in WORD.finditer(line, begin) for at in range(*word.span())}
            said -= {at for value in VALUE.finditer(line) for at in range(*value.span())}
            made = set[int]()
            for pattern in patterns:
                for found in pattern.finditer(line):
                    gaps = {at for gap in range(1, pattern.groups + 1) for at in range(*found.span(gap))}
                    made |= set(range(*found.span())) - gaps
            if len(said & made) < MADE_BY_THE_SOURCES * len(said):
                yield f"{block}: no source file says {line!r}"


def broken_links(page: Path) -> Iterator[str]:
    """Find links to files that do not exist."""
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
        if not (page.parent / target).exists():
            yield f"{page.relative_to(ROOT)}: there is no {target}"


def main(names: Sequence[str]) -> int:
    """Check the named pages, or all; print the faults, and return the exit status."""
    pages = [Path(name).resolve() for name in names] or [
        *sorted(DOCS.rglob("*.md")),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
    wrong = [f"{block}: {what}" for page in pages for block in blocks_of(page) for what in wrong_with(block)]
    wrong += [text for page in pages for text in unknown_keys(page)]
    wrong += [text for page in pages if page.name == "troubleshooting.md" for text in strange_messages(page)]
    wrong += [text for page in pages if page.parent == ROOT for text in broken_links(page)]
    wrong += old_pictures()
    # Two pages run at a time, since a training's processes wait for one another.
    with ThreadPoolExecutor(2) as pool:
        for failures in pool.map(run_page, pages):
            wrong += failures
    print(
        "\n".join(wrong)
        or f"{sum(1 for page in pages for _ in blocks_of(page))} blocks are as they should be"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    assert shutil.which("bash")
    sys.exit(main(sys.argv[1:]))
