"""docs/cli.md says what there is: commands, options, exit codes, variables; and its examples can be typed."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from tests.cli_reference import COMMON, GUIDE, commands, root, updated

TEXT = GUIDE.read_text(encoding="utf-8")
SOURCES = [*(GUIDE.parents[1] / "controller" / "commands").glob("*.py"), GUIDE.parents[1] / "worker" / "search_cli.py"]
REQUIRED = {
    *("submit", "search", "doctor", "db upgrade", "local up", "shard list", "shard requeue"),
    *(f"request {verb}" for verb in ("list", "show", "cancel", "wait", "validate")),
}


def examples() -> list[str]:
    """Every command line of the guide that begins with our program, as one line."""
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [found[0] for line in lines if (found := re.search(r"(?:^|[ |])reembed .*", line))]


def test_the_generated_parts_are_up_to_date() -> None:
    assert updated(TEXT) == TEXT, "run `python -m tests.cli_reference`"


def test_the_commands_are_there() -> None:
    names = {name.removeprefix("reembed ") for name, _ in commands()}
    assert names >= REQUIRED
    assert all(f"### reembed {name}" in TEXT for name in names)


def test_every_command_and_option_explains_itself() -> None:
    for name, command in commands():
        assert command.help, name
        for param in command.params:
            assert param.help, (name, param.name)


def test_options_of_many_commands_are_described_above() -> None:
    above = TEXT[: TEXT.index("## Commands")]
    assert all(f"`{option}`" in above for option in COMMON)


@pytest.mark.parametrize("line", examples())
def test_an_example_can_be_typed(line: str) -> None:
    words = shlex.split(line.strip().lstrip("|").strip())
    if "|" in words:
        words = words[: words.index("|")]
    command, name = root(), words.pop(0)
    context = typer.Context(command, info_name=name)
    while hasattr(command, "get_command"):
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"no command {name!r}"
    command.make_context(name, words)


def test_every_variable_is_documented() -> None:
    read = {found for source in SOURCES for found in re.findall(r"REEMBED_[A-Z_]*[A-Z]", source.read_text())}
    # Advice of the doctor names further settings of the controller; those are documented as such.
    named = read - {"REEMBED_STORAGE__CONTROL_BUCKET", "REEMBED_SQS", "REEMBED_GPU_QUEUES"}
    assert named >= {"REEMBED_API_URL", "REEMBED_API__TOKEN", "REEMBED_ACTOR", "REEMBED_INDEX_URL"}
    assert [name for name in named if f"| `{name}` |" not in TEXT] == []
