"""`reembed local`: the embedded stack by hand. Joins the product's CLI through the entry point group `reembed.cli`.

Owns the terminal side only: what is printed, and that every signal that ends us ends the stack in order first.
Exit codes: 0 stopped as asked or demo passed, 1 something did not start or a check failed, 3 nothing to stop or
already up, 130 the demo was interrupted.
"""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from deploy.local.processes import ServiceFailedError
from deploy.local.resources import BucketName, client
from deploy.local.stack import DEFAULT_STATE_DIRECTORY, AlreadyUpError, Stack, stop_supervisor

app = typer.Typer(
    help="The whole system on this machine: no AWS account, no Docker.", no_args_is_help=True, add_completion=False
)
console = Console(stderr=True)

FAILED, NOT_NOW, INTERRUPTED = 1, 3, 130
ENVIRONMENT_FILE = "env.sh"
StateDirectory = Annotated[Path, typer.Option("--state-dir", help="Data and logs of the stack.")]


@contextmanager
def ending_signals() -> Iterator[threading.Event]:
    """SIGINT, SIGTERM and SIGHUP set the event inside the block, instead of ending us half-way through a stop."""
    asked = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
def up(
    state_dir: StateDirectory = DEFAULT_STATE_DIRECTORY,
    controllers: Annotated[int, typer.Option(min=0, help="Controllers to run on the one database.")] = 1,
    demo_pictures: Annotated[
        bool, typer.Option("--demo-pictures", help="Put the demo's pictures into s3://photos/demo/.")
    ] = False,
    images: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Put these pictures into s3://photos/images/.")
    ] = None,
) -> None:
    """Start the stack and keep it until Ctrl-C; each start begins empty."""
    stack = Stack(state_dir)
    with _explained(state_dir), ending_signals() as asked, stack:
        names = [f"controller-{number}" for number in range(1, controllers + 1)]
        for name in names:
            stack.start_controller(name)
        if demo_pictures or images:
            _upload_pictures(stack, images)
        write_environment(stack, names)
        _announce(stack, names)
        while not asked.wait(timeout=1):
            pass
        console.print("Stopping …")


@contextmanager
def _explained(state_dir: Path) -> Iterator[None]:
    """What can go wrong with the stack itself, as a text and an exit code."""
    try:
        yield
    except AlreadyUpError as error:
        console.print(f"[red]{error}[/]; stop it with: reembed local down --state-dir {state_dir}", soft_wrap=True)
        raise typer.Exit(NOT_NOW) from None
    except ServiceFailedError as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(FAILED) from None


@app.command()
def demo(
    state_dir: StateDirectory = DEFAULT_STATE_DIRECTORY,
    images: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Your own pictures instead of the default ones.")
    ] = None,
    chaos: Annotated[bool, typer.Option("--chaos", help="Reclaim a job, refuse capacity, throttle reads.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the stack up at the end, until Ctrl-C.")] = False,
) -> None:
    """Run the main job on real pictures: embed, index, search, and check the result."""
    from deploy.local.demo.run import Demo, DemoFailed, Interrupted, Options

    def linger(stack: Stack) -> None:
        if keep:
            names = list(stack.controllers)
            write_environment(stack, names)
            _announce(stack, names)
            while not asked.wait(timeout=1):
                pass

    with _explained(state_dir), ending_signals() as asked:
        try:
            Demo(Options(state_dir, images, chaos), Console(), console, asked).run(linger)
        except Interrupted:
            console.print("Stopped; nothing is left running.")
            raise typer.Exit(INTERRUPTED) from None
        except (DemoFailed, FileNotFoundError) as error:
            console.print(str(error), style="red", markup=False)
            raise typer.Exit(FAILED) from None


@app.command()
def down(state_dir: StateDirectory = DEFAULT_STATE_DIRECTORY) -> None:
    """Stop the stack that another terminal keeps up."""
    if not stop_supervisor(state_dir):
        console.print(f"nothing is up in {state_dir}")
        raise typer.Exit(NOT_NOW)
    console.print("stopped")


def write_environment(stack: Stack, controllers: list[str]) -> None:
    """A file to source; it holds passwords of this machine's databases."""
    variables = stack.environment()
    if controllers:
        variables["REEMBED_API_URL"] = stack.api_url(controllers[0])
    file = stack.directory / ENVIRONMENT_FILE
    file.touch(mode=0o600)
    file.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items())))


def _upload_pictures(stack: Stack, images: Path | None) -> None:
    """The user's, or the demo's; the demo's held-out crops become files to search with."""
    from deploy.local import photos

    with closing(client("s3", stack.s3_endpoint)) as s3:

        def upload(key: str, body: bytes) -> None:
            s3.put_object(Bucket=BucketName.PHOTOS, Key=key, Body=body)

        pictures = photos.build(upload) if images is None else photos.from_folder(images, upload)
    queries = stack.directory / "queries"
    queries.mkdir(exist_ok=True)
    for number, query in enumerate(pictures.queries):
        (queries / f"{Path(query.photo).stem}-{number}.jpg").write_bytes(query.jpeg)
    place = f"s3://{BucketName.PHOTOS}/{pictures.prefix}"
    console.print(f"{len(pictures.assets)} pictures are in {place}, some to search with in {queries}", soft_wrap=True)


def _announce(stack: Stack, controllers: list[str]) -> None:
    out = Console()
    out.print("[bold green]The stack is up.[/] Ctrl-C stops it.")
    for name in controllers:
        url = stack.api_url(name)
        out.print(f"{name:14} {url}   metrics {url}/metrics", highlight=False)
    for name, url in (("S3", stack.s3_endpoint), ("SQS", stack.sqs_endpoint), ("Batch", stack.batch_endpoint)):
        out.print(f"{name:14} {url}", highlight=False)
    out.print(f"{'logs':14} {stack.logs}", highlight=False, soft_wrap=True)
    out.print("In another terminal:", f"  . {stack.directory / ENVIRONMENT_FILE}", sep="\n", soft_wrap=True)
