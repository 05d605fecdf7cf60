"""The generated parts of docs/cli.md, from the commands themselves. `python -m tests.cli_reference` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from controller.cli import app
from controller.commands.exits import MEANINGS

GUIDE = Path(__file__).parents[1] / "docs" / "cli.md"
#: Described once, above the reference.
COMMON = ("--help", "--output", "--url", "--token-file", "--actor", "--yes")
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def root() -> Any:
    """The root command, with those of other packages."""
    return typer.main.get_command(app)


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, as it is typed."""
    yield from _below("reembed", root(), typer.Context(root(), info_name="reembed"))


def _below(name: str, command: Any, context: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield name, command
        return
    for child in command.list_commands(context):
        yield from _below(f"{name} {child}", command.get_command(context, child), context)


def generated() -> dict[str, str]:
    """The parts by name."""
    codes = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return {
        "exits": "\n".join(["| code | meaning |", "| --- | --- |", *codes]) + "\n",
        "commands": "\n".join(_section(name, command) for name, command in commands()),
    }


def updated(guide: str) -> str:
    """The guide with its generated parts as they must be."""
    parts = generated()
    return _PART.sub(lambda found: found[1] + parts[found[2]] + found[3], guide)


def _section(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    typed = " ".join([name, *(_place(param) if param.required else f"[{_place(param)}]" for param in arguments)])
    text, _, examples = command.help.partition("\b\nExamples:\n")
    lines = [f"### {typed}", "", _prose(text), ""]
    lines += ["```sh", *(line.removeprefix("  ") for line in (examples.rstrip() or name).splitlines()), "```"]
    rows = [f"| `{_place(param)}` | {param.help} |" for param in arguments]
    rows += [_option(param) for param in command.params if param.param_type_name == "option" and _own(param)]
    if rows:
        lines += ["", "| argument or option | meaning |", "| --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def _place(argument: Any) -> str:
    return argument.metavar or argument.name.upper()


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _own(param: Any) -> bool:
    return not set(COMMON) & set(param.opts)


def _option(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(param.opts, key=len))
    default = "" if param.default in (None, False) or callable(param.default) else f" Default: {_text(param.default)}."
    required = " Required." if param.required else ""
    return f"| {names} | {param.help}{default}{required} |"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    GUIDE.write_text(updated(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
