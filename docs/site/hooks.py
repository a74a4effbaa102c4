"""Hooks that mkdocs calls while it builds the site: generated pages and tables, and equations.

Generated pages are not committed. Keys come from the config's models, as in `tianji config schema`, and
commands from the command line itself.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from tianji_cli.config.json_schema import config_schema

sys.path.insert(0, str(Path(__file__).parent))
from commands import all_commands
from equations import drawn

Table = Mapping[str, Any]

SCHEMA = config_schema()

SETTINGS = re.compile(r"<!-- settings: (\w+) (\w+) -->")
"""Mark in a page for a table of the settings of an agent, a model or an update rule."""

SHIM = re.compile(r'https://[^"]*/iframe-worker/shim')
"""Address from which the theme would fetch the search's worker if the site lies on a disk."""
FETCHED = re.compile(
    r'<(?:script|img|iframe|link rel="(?:stylesheet|preload)")[^>]*(?:src|href)="(https?://[^"]*)'
)
"""Addresses that a browser fetches to show a page."""

IN_A_LINE = re.compile(r"(?<!<pre><code>)(?<!</span><code>)(?<=<code>)[^<]*(?=</code>)")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
SEPARATOR = re.compile(r"(?<=\w)(?:/|\.(?!\w{1,4}\b))(?=\w)")
"""Separators in a path or a key; a suffix stays with its file."""

UNITS = (
    (re.compile(r"_s$"), "seconds"),
    (re.compile(r"_mb$"), "MB"),
    (re.compile(r"^(env_steps|sync_interval)$"), ""),
    (re.compile(r"^cores$"), "cores"),
    (re.compile(r"per_minute$"), "a minute"),
)
UNIT_OF_MEANING = re.compile(
    r"^(?:[A-Z]\w*, )?(seconds|env steps|episodes|updates|fragments|rollouts|samples|steps|unrolls"
    r"|share|number|numbers|widths?|actors|learners|buffers)\b"
)
HEADS = {
    "experiment": "Name of a run, when it ends, and what it writes.",
    "experiment.stop": "Conditions that end a run; it ends when the first one holds. Set at least one.",
    "experiment.evaluation": "Evaluations while training. Without this table there are none.",
    "experiment.init": "Parts that a run takes from the one in `init_from`, and parameters that stay fixed.",
    "environment": "The environment from which experience comes.",
    "distribution": "The processes of a job, and how data moves between them.",
    "distribution.learner": "The processes that update the parameters.",
    "distribution.actor": "The processes that step environments.",
    "distribution.inference": "Processes that run the actors' network. Without this table each has its own.",
    "distribution.buffer": "The buffer, in which fragments wait for the learner.",
    "population": "Groups as members, the worst of which copy the best. Without this table there are none.",
    "roles.NAME": "A role of your own. Its class may have more settings than these.",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the reference that are generated."""
    for name, text in (("config", config_page()), ("commands", commands_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put tables of settings in place of their marks."""
    return SETTINGS.sub(lambda mark: "\n".join(settings_table(*mark.groups())), markdown)


def on_page_content(content: str, page: Any, **_: object) -> str:
    """Draw equations, mark where inline code may break, and mark the page whose blocks are sentences."""

    def picture(found: re.Match[str]) -> str:
        latex = html.unescape(found["latex"]).strip()[2:-2].strip()
        is_block = found["tag"] == "div"
        return f'<div class="equation">{drawn(latex)}</div>' if is_block else drawn(latex)

    content = IN_A_LINE.sub(lambda code: breakable(code[0]), content)
    if page.file.src_uri == "troubleshooting.md":
        content = f'<div class="messages">{content}</div>'
    return re.sub(
        r'<(?P<tag>span|div) class="arithmatex">(?P<latex>.*?)</(?P=tag)>', picture, content, flags=re.DOTALL
    )


def breakable(code: str) -> str:
    """Let a narrow page break paths and keys behind their separators, and options nowhere."""
    return OPTION.sub(r'<span class="option">\g<0></span>', SEPARATOR.sub(r"\g<0><wbr>", code))


def on_post_page(output: str, **_: object) -> str:
    """Make a page fetch nothing from elsewhere: the search's worker, which the theme fetches, is on the site.

    Raises:
        PluginError: the page fetches something else.
    """
    base = re.search(r'src="([^"]*)assets/javascripts/bundle', output)
    if base is not None:
        output = SHIM.sub(f"{base[1]}assets/iframe-worker.js", output)
    if found := FETCHED.search(output):
        raise PluginError(f"a page fetches {found[1]}: it has to be shown without a network")
    return output


def on_post_template(output_content: str, template_name: str, **_: object) -> str:
    """Make pages without a source, such as 404.html, fetch nothing from elsewhere."""
    return on_post_page(output_content) if template_name.endswith(".html") else output_content


def config_page() -> str:
    """Write the page of all keys."""
    return "\n".join(
        [
            "# Every key of a config",
            "",
            "Made from the models that check a config, so this is what the program itself knows; "
            "`tianji config schema` prints the same for an editor, and `tianji config show FILE` a config "
            "with all of its values. Keys without a default have to be there, or mean what their line says. "
            "A key's value is replaced as a whole, by `extends` and by `--set SECTION.KEY=VALUE`.",
            "",
            *_sections(),
        ]
    )


def _sections() -> Iterator[str]:
    yield from ("", "## Top of the file", "", "| key | type | meaning |", "|---|---|---|")
    yield "| `extends` | string | a config whose values hold where this one says nothing |"
    for name, about in HEADS.items():
        yield from ("", f"## [{name}] {{#{name.replace('.', '-').lower()}}}", "", about, "")
        yield from keys_table(_table_of(name).get("properties", {}))
    for section, what in (
        ("agent", "How a policy meets the environment. `type` names it."),
        ("training", "The hyperparameters of the update rule. `type` is the agent's own unless it is said."),
        ("model", "The network. `type` is the agent's own unless it is said."),
    ):
        yield from ("", f"## [{section}] {{#{section}}}", "", what, "")
        for name in types_of(section):
            yield from ("", f"### {section}: {name} {{#{section}-{name}}}", "")
            yield from settings_table(section, name)
    yield ""


def _table_of(path: str) -> Table:
    """Find a table of the schema by its dotted path."""
    at: Table = SCHEMA
    for key in path.split("."):
        at = at["properties"][key] if key != "NAME" else at["additionalProperties"]
        at = _resolved(at)
    return at


def _resolved(one: Table) -> Table:
    while "$ref" in one:
        one = SCHEMA["$defs"][str(one["$ref"]).rpartition("/")[2]]
    return one


def types_of(section: str) -> dict[str, Table]:
    """Types that a section may name, with the schema of each."""
    some = SCHEMA["properties"][section]["anyOf"]
    return {one["title"]: one for one in some if "title" in one}


def settings_table(section: str, name: str) -> list[str]:
    """Write the settings of one type of agent, model or update rule.

    Raises:
        KeyError: there is no such type.
    """
    keys = {key: value for key, value in types_of(section)[name]["properties"].items() if key != "type"}
    return list(keys_table(keys)) if keys else ["It has no settings of its own."]


def keys_table(keys: Mapping[str, Table]) -> Iterator[str]:
    """Write keys with default, unit, meaning and values.

    Raises:
        ValueError: the model's docstring does not describe a key.
    """
    yield from ('<div class="settings" markdown="1">', "")
    yield from ("| key | default | unit | meaning | values |", "|---|---|---|---|---|")
    for key, value in keys.items():
        nested = "$ref" in value and _resolved(value).get("properties")
        meaning = value.get("description", "")
        if nested and not meaning:
            continue  # The key is a table and has its own heading.
        if not meaning:
            raise ValueError(f"the docstring of its model does not say what {key} means")
        cells = (f"`{key}`", _default(value), _unit(key, meaning), _prose(meaning), _type(value))
        yield f"| {' | '.join(cells)} |"
    yield from ("", "</div>", "")


def _type(value: Table) -> str:
    value = {**_resolved(value), **value}
    if "enum" in value:
        return " or ".join(f"`{json.dumps(one)}`" for one in value["enum"])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_type(one) for one in value["anyOf"]))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    kind = value.get("type", "any value")
    if kind == "array":
        items = value.get("items") or {}
        return f"list of {_type(items)}s" if items and "`" not in _type(items) else "list"
    name = {"integer": "whole number", "boolean": "true, false", "object": "table"}.get(kind, kind)
    bounds = [
        f"{sign} {value[word]:,}"
        for word, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if word in value
    ]
    return ", ".join([name, *bounds])


def _default(value: Table) -> str:
    if "Where a config does not say it" in value.get("description", ""):
        return "see there"
    if "default" not in value:
        return ""
    default = value["default"]
    if isinstance(default, int) and not isinstance(default, bool) and default >= 10_000:
        return f"`{default:_}`"
    return f"`{json.dumps(default)}`"


def _unit(key: str, meaning: str) -> str:
    for pattern, unit in UNITS:
        if pattern.search(key) and unit:
            return unit
    found = UNIT_OF_MEANING.match(meaning)
    return found[1] if found else ""


def _prose(text: str) -> str:
    """Format a docstring's text for a cell: single backquotes, and "left out" in place of None."""
    text = text.replace("``", "`").replace("|", "\\|")
    text = re.sub(r"\bNone\b(?=[ :])", "left out", text)
    return text[:1].upper() + text[1:]


def commands_page() -> str:
    """Write the page of all commands."""
    lines = [
        "# Every command",
        "",
        "Made from the command line itself. Every command also takes `--help`, and `--debug`, which shows "
        "the traceback of an error. Exit status: 0 done, 1 the run failed, 2 the command or its config is "
        "wrong, 130 interrupted. `tianji --install-completion` has bash, zsh or fish complete all of this.",
        "",
    ]
    for name, command, above in all_commands():
        lines += ["", f"## tianji {name} {{#{name.replace(' ', '-')}}}", "", *_command(command, name, above)]
    return "\n".join([*lines, ""])


def _command(command: Any, name: str, above: Any) -> Iterator[str]:
    context = type(above)(command, info_name=name.rpartition(" ")[2], parent=above)
    yield " ".join(str(command.help or "").partition("\f")[0].split())
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("", "```text", f"tianji {name} {pieces}", "```", "")
    rows = [_parameter(one, context) for one in command.params if one.name != "help" and not one.hidden]
    if rows:
        yield from ("| option | what it does | default |", "|---|---|---|", *rows)


def _parameter(one: Any, context: Any) -> str:
    if one.param_type_name == "argument":
        named = f"`{(one.metavar or one.name.upper()).strip('[]')}`"
    else:
        kind = one.display_type(context).strip("<>")
        value = "" if one.is_flag else f" {one.metavar or (kind if '|' in kind else one.name.upper())}"
        named = ", ".join(f"`{flag}{value}`".replace("|", "\\|") for flag in [*one.opts, *one.secondary_opts])
    default = one.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    if isinstance(default, Sequence) and not isinstance(default, str):
        default, plain = " ".join(map(str, default)), bool(default)
    shown = f"`{default}`" if plain and default != "" else ""
    return f"| {named} | {_prose(str(one.help or ''))} | {shown} |"
