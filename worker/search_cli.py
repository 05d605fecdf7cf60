"""`reembed search`: a picture, or an asset of the index, and what lies nearest to it.

Joins the command line through the entry point group `reembed.cli`; client, printing and errors come from the host, in
`context.obj`. A picture is embedded here, on the CPU, with the model that made the index: the request that filled it
says which, so the API must answer, unless --model names it. An asset of the index needs no model at all.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from worker.index.search import Hit, Target

INDEX_VARIABLE = "REEMBED_INDEX_URL"
COLUMNS = ("rank", "key", "distance")
MAX_HITS = 1000
FAILED, USAGE, NOT_FOUND = 1, 2, 3

app = typer.Typer(add_completion=False)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


_Index = Annotated[str, typer.Argument(metavar="INDEX", help="Alias that requests name, or the id of a request.")]
_Picture = Annotated[Path | None, typer.Argument(metavar="PICTURE", help="Image file to search with.")]
_Key = Annotated[str | None, typer.Option("--key", help="Search with this asset of the index instead.")]
_K = Annotated[int, typer.Option("-k", min=1, max=MAX_HITS, help="How many of the nearest.")]
_Model = Annotated[
    str | None, typer.Option("--model", help="name@version that made the index; asked of the API by default.")
]
_Output = Annotated[
    Output, typer.Option("-o", "--output", help="How to print results on stdout; errors follow it on stderr.")
]
_Url = Annotated[str, typer.Option("--url", envvar="REEMBED_API_URL", help="Where the controller's API is.")]
_TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="File with the API token; without it REEMBED_API__TOKEN is used.")
]


@app.command()
def search(
    context: typer.Context,
    index: _Index,
    picture: _Picture = None,
    key: _Key = None,
    k: _K = 5,
    model: _Model = None,
    output: _Output = Output.TABLE,
    url: _Url = "http://127.0.0.1:8080",
    token_file: _TokenFile = None,
) -> None:
    """Find the assets nearest to a picture.

    In an index that a request has filled. Needs REEMBED_INDEX_URL, the URL of the index database. Distance is cosine
    distance: 0 is the same direction. The picture is embedded on this machine, with the model that made the index.

    \b
    Examples:
      reembed search photos cat.jpg -k 10
      reembed search photos --key images/0001.jpg -o json
    """
    host: Any = context.obj
    host.begin(output.value)
    if (picture is None) == (key is None):
        raise host.error(USAGE, "search with what?", "give either a PICTURE or --key")
    body = _body(host, picture) if picture is not None else None
    with host.needed("worker"):
        from worker.index import search as reader
    database = os.environ.get(INDEX_VARIABLE)
    if not database:
        raise host.error(USAGE, f"{INDEX_VARIABLE} is not set", "set it to the URL of the index database")
    try:
        target = reader.find(database, index)
        if body is None:
            hits = reader.similar(database, target, os.fsencode(key or ""), k)
        else:
            vector = _embed(host, body, picture, model, target, url, token_file)
            hits = reader.nearest_in(database, target, vector, k)
    except LookupError as error:
        raise host.error(NOT_FOUND, str(error), "`reembed request list -o json` shows requests with index") from error
    except (ValueError, reader.DATABASE_ERRORS) as error:
        raise host.error(FAILED, f"the index: {_line(error)}", f"check {INDEX_VARIABLE}") from error
    host.rows([_row(rank, hit) for rank, hit in enumerate(hits, 1)], COLUMNS)


def _body(host: Any, picture: Path) -> bytes:
    try:
        return picture.read_bytes()
    except OSError as error:
        raise host.error(USAGE, f"cannot read {picture}: {error.strerror}", "name an image file") from error


def _embed(
    host: Any, body: bytes, picture: Path | None, model: str | None, target: Target, url: str, token_file: Path | None
) -> list[float]:
    """One vector. What made the index decides the model, and pictures must be cut as they were then."""
    with host.needed("worker"):
        from worker.models import registry
        from worker.query import UnreadablePictureError, embed_pictures

    digest = None
    if model is None:
        try:
            with host.api(url, token_file) as api:
                request = api.get("requests", target.request_id)
        except host.Unanswered as error:
            fix = "say where the API is with --url or REEMBED_API_URL, or name the model of the index with --model"
            raise host.error(FAILED, f"which model made the index? {error}", fix) from error
        model, digest = request["model"], request["preprocessing_digest"]
    try:
        plugin = registry.find(model)
        if digest not in (None, plugin.preprocessing_digest):
            fix = "search with the release of reembed that made the index, or re-embed"
            raise host.error(FAILED, f"this release prepares pictures for {model} unlike the one of the index", fix)
        with host.needed("worker"):
            return embed_pictures(model, [body])[0].tolist()
    except registry.UnknownModel as error:
        raise host.error(FAILED, str(error), "install the package that registers the model") from error
    except UnreadablePictureError as error:
        raise host.error(USAGE, f"{picture} is no picture that we can read: {error}", "give another file") from error


def _row(rank: int, hit: Hit) -> dict[str, Any]:
    """Keys are bytes; what is not UTF-8 is escaped."""
    return {"rank": rank, "key": hit.key.decode("utf-8", "backslashreplace"), "distance": round(hit.distance, 6)}


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
