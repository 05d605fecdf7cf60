"""docs/settings.md says what the code reads. `python -m tests.tidy.test_settings_page` writes it anew."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from controller.settings import Settings as Controller
from tests.generated import filled, table
from worker.settings import Settings as Worker

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "settings.md"
_VARIABLE = re.compile(r"(REEMBED|AWS|NVIDIA)(_[A-Z0-9]+)+")
#: Bounds of a number, as pydantic keeps them.
_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def group_of(field: FieldInfo) -> type[BaseModel] | None:
    """The group that a field is, or that it lists or names."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def meaning(field: FieldInfo) -> str:
    bounds = [f"{sign} {getattr(m, key)}" for m in field.metadata for key, sign in _BOUNDS.items() if hasattr(m, key)]
    return (field.description or "") + (f" ({', '.join(bounds)})" if bounds else "")


def settings() -> Iterator[tuple[str, str, FieldInfo]]:
    """Group, variable or field of an entry, field."""
    for name, field in Controller.model_fields.items():
        group, variable = group_of(field), f"REEMBED_{name.upper()}"
        if group is None:
            yield "", variable, field
        elif group is field.annotation:
            yield from ((name, f"{variable}__{inner.upper()}", f) for inner, f in group.model_fields.items())
        else:
            yield "", variable, field
            yield from ((name, inner, f) for inner, f in group.model_fields.items())


def controller() -> str:
    rows: dict[str, list[tuple[str, str, str]]] = {"": []}
    for group, variable, field in settings():
        rows.setdefault(group, []).append((f"`{variable}`", default(field), meaning(field)))
    return "\n\n".join(section(group, entries) for group, entries in rows.items())


def section(name: str, rows: list[tuple[str, str, str]]) -> str:
    if not name:
        return table(("variable", "default", "meaning"), rows)
    field = Controller.model_fields[name]
    group = group_of(field)
    text = "" if group is None or group.__doc__ is None else " ".join(inspect.cleandoc(group.__doc__).split())
    whole = group is field.annotation
    if not whole:
        text = f"{text} A field of an entry of `REEMBED_{name.upper()}`.".strip()
    text = textwrap.fill(text, 118, break_on_hyphens=False)
    head = ("variable" if whole else "field", "default", "meaning")
    return "\n\n".join(part for part in (f"### {name}", text, table(head, rows)) if part)


def worker() -> str:
    """The variables that a job definition may set: name and field from the code that reads them."""
    tree = ast.parse(inspect.getsource(Worker)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs = {
        field.target.id: " ".join(text.value.value.split())
        for field, text in zip(tree.body, tree.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
    rows = [(f"`REEMBED_{name.upper()}`", worker_default(name), text) for name, text in docs.items()]
    return table(("variable", "default", "meaning"), rows)


def worker_default(name: str) -> str:
    value = Worker.__dataclass_fields__[name].default
    return "none" if value is None else f"`{value}`"


def parts() -> dict[str, str]:
    return {"controller": controller(), "worker": worker()}


def variables_read() -> set[str]:
    """Every name of an environment variable that stands as a string in what ships."""
    constants: set[Any] = set()
    for package in ("schema", "controller", "worker"):
        for path in (ROOT / package).rglob("*.py"):
            constants |= {n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)}
    return {text for text in constants if isinstance(text, str) and _VARIABLE.fullmatch(text)}


def test_the_page_is_what_the_code_says() -> None:
    page = PAGE.read_text()
    assert page == filled(page, parts()), "run python -m tests.tidy.test_settings_page"


def test_every_setting_has_a_meaning() -> None:
    assert [variable for _, variable, field in settings() if not field.description] == []


def test_every_variable_that_is_read_is_on_the_page() -> None:
    read = variables_read()
    assert {"REEMBED_CONFIG", "REEMBED_RANKS", "AWS_BATCH_JOB_ID"} <= read
    assert read <= set(re.findall(r"[A-Z][A-Z0-9]+(?:_+[A-Z0-9]+)+", PAGE.read_text()))


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), parts()))
