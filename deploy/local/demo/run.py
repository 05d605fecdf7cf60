"""The demo's recipe: start the stack, upload pictures, send one request, watch it, search, check, tell.

Owns the order and what is printed. Results go to stdout, the last line being JSON; talk goes to stderr. Whatever is not
as it should be is named and makes the exit code 1.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from deploy.local import photos
from deploy.local.batch_site import BatchTuning
from deploy.local.demo.chaos import Chaos
from deploy.local.demo.figures import AttemptFigures, DemoFigures, faults_in_chaos, faults_in_output
from deploy.local.demo.recall import recall_in_memory, search, share_of_hits
from deploy.local.demo.watch import ProgressView
from deploy.local.environment import TENANT
from deploy.local.output import read_output
from deploy.local.photos import DemoSet
from deploy.local.postgres import Database, Driver
from deploy.local.resources import BucketName, QueueName, client
from deploy.local.stack import Stack
from schema.client import Client, RequestRef
from schema.states import REQUEST_TERMINAL, RequestState
from worker.index.search import Hit

MODEL = "efficientnet-lite0@1"
UNTRAINED = "efficientnet-lite0-random@1"
INDEX = "demo"
SHARDS, CHUNKS_A_SHARD, ARRAY_MAX, SLOW_SHARD = 9, 4, 4, 4
#: The last shard overflows to the next queue, and is a job of its own there.
BACKLOG = SHARDS - 1
#: The awkward files lie beside each other, and bad ones are 8 % of their shard.
TOLERANCE = 0.2
POLL_SECONDS = 0.5


class Interrupted(Exception):
    """The user asked us to stop."""


class DemoFailed(Exception):
    """The request did not finish, or a check failed; the text says what to look at."""


@dataclass(frozen=True)
class Options:
    state_directory: Path
    images: Path | None = None
    chaos: bool = False
    timeout_seconds: float = 1800.0


class Demo:
    """One run. `asked` is set when the user wants us to stop."""

    def __init__(self, options: Options, out: Console, talk: Console, asked: threading.Event) -> None:
        self._options = options
        self._out = out
        self._talk = talk
        self._asked = asked
        self._bodies: dict[str, bytes] = {}

    def run(self, linger: Callable[[Stack], None]) -> None:
        """Raises Interrupted or DemoFailed. `linger` is called before the stack is stopped."""
        self._say("Starting Postgres, SQS, S3 and a Batch stand-in on 127.0.0.1 …")
        with Stack(self._options.state_directory, tuning=BatchTuning(backlog=BACKLOG)) as stack:
            with closing(client("s3", stack.s3_endpoint)) as s3:
                pictures = self._upload_pictures(s3)
                settings = _sizes(len(pictures.assets))
                url = stack.start_controller(**settings)
                self._say(f"Console {url}/   metrics {url}/metrics   logs {stack.logs}")
                chaos = self._chaos(stack, s3, pictures, int(settings["REEMBED_WORK__SHARD_ASSETS"]))
                with httpx.Client(base_url=url, timeout=30) as api:
                    request, seconds = self._embed(stack, api, pictures, chaos)
                    found = search(stack.postgres.url(Database.INDEX, Driver.PSYCOPG), INDEX, MODEL, pictures)
                    figures = self._figures(api, request, pictures, found, chaos, seconds)
                output = read_output(s3, request["manifest_uri"])
            self._show(pictures, found, url)
            self._out.print(figures.line(), soft_wrap=True, highlight=False, markup=False)
            faults = faults_in_output(output, pictures) + (faults_in_chaos(figures, chaos.fired()) if chaos else [])
            if faults:
                raise DemoFailed("\n".join(faults))
            linger(stack)

    # -- steps ---------------------------------------------------------------------------------------

    def _upload_pictures(self, s3: Any) -> DemoSet:
        def upload(key: str, body: bytes) -> None:
            self._go_on()
            s3.put_object(Bucket=BucketName.PHOTOS, Key=key, Body=body)
            if self._options.images is None:
                self._bodies[key] = body

        if self._options.images is not None:
            self._say(f"Uploading the pictures below {self._options.images} …")
            return photos.from_folder(self._options.images, upload)
        self._say("Cutting and uploading pictures …")
        return photos.build(upload)

    def _chaos(self, stack: Stack, s3: Any, pictures: DemoSet, shard_assets: int) -> Chaos | None:
        if not self._options.chaos:
            return None
        keys = sorted((asset.key for asset in pictures.assets), key=str.encode)
        shard = min(SLOW_SHARD, (len(keys) - 1) // shard_assets)
        last = keys[: (shard + 1) * shard_assets][-1]
        chaos = Chaos(stack, s3, prefix=pictures.prefix, shard=shard, slow_key=last)
        chaos.arm()
        return chaos

    def _embed(
        self, stack: Stack, api: httpx.Client, pictures: DemoSet, chaos: Chaos | None
    ) -> tuple[dict[str, Any], float]:
        """Send the request as upstream would and watch it to its end; the request and its seconds."""
        with closing(client("sqs", stack.sqs_endpoint)) as sqs:
            upstream = Client(
                stack.queue_url(QueueName.REQUESTS), stack.queue_url(QueueName.STATUS), tenant=TENANT, sqs=sqs
            )
            source, output = f"s3://{BucketName.PHOTOS}/{pictures.prefix}", f"s3://{BucketName.EMBEDDINGS}/demo"
            tolerance = TOLERANCE if self._options.images is None else 1.0  # whatever lies in a user's folder
            ref = upstream.submit("demo", source, MODEL, output, index=INDEX, tolerance=tolerance)
            self._say(f"Sent request {ref.request_id}: {len(pictures.assets)} assets, model {MODEL}")
            began = time.monotonic()
            request = self._watch(api, ref, chaos)
            seconds = time.monotonic() - began
            if request["state"] == RequestState.SUCCEEDED and upstream.wait(ref, timeout_seconds=30).succeeded:
                return request, seconds
        raise DemoFailed(f"the request is {request['state']}: {request['reason']}; logs are in {stack.logs}")

    def _watch(self, api: httpx.Client, ref: RequestRef, chaos: Chaos | None) -> dict[str, Any]:
        view = ProgressView(self._talk)
        deadline = time.monotonic() + self._options.timeout_seconds
        with view.shown():
            while time.monotonic() < deadline:
                answer = api.get(f"/api/v1/requests/{ref.request_id}")
                if answer.status_code != httpx.codes.NOT_FOUND:  # not taken off the queue yet
                    request = answer.raise_for_status().json()
                    view.update(request, api.get("/api/v1/queues").raise_for_status().json())
                    if request["state"] in REQUEST_TERMINAL | {RequestState.ATTENTION}:
                        return request
                    if chaos is not None:
                        chaos.tick(api, request)
                if self._asked.wait(POLL_SECONDS):
                    raise Interrupted
        raise DemoFailed(f"not finished after {self._options.timeout_seconds:g} s")

    def _figures(
        self,
        api: httpx.Client,
        request: dict[str, Any],
        pictures: DemoSet,
        found: list[list[Hit]],
        chaos: Chaos | None,
        seconds: float,
    ) -> DemoFigures:
        path = f"/api/v1/requests/{request['id']}/shards"
        shards = [api.get(f"{path}/{number}").raise_for_status().json() for number in range(request["shards"])]
        of_attempts = AttemptFigures.of(shards)
        return DemoFigures(
            assets=request["assets"],
            ok=request["progress"]["ok"],
            bad=request["progress"]["bad"],
            shards=request["shards"],
            attempts=of_attempts.attempts,
            fallbacks=of_attempts.fallbacks,
            reclaimed=of_attempts.reclaimed,
            refused=chaos.fired()["refused"] if chaos else 0,
            throttled=of_attempts.throttled,
            chunks_reused=of_attempts.chunks_reused,
            recall_at_5=round(share_of_hits(pictures, [[hit.key.decode() for hit in hits] for hits in found]), 4),
            recall_chance=round(pictures.recall_by_chance(), 4),
            recall_random_weights=self._recall_untrained(pictures),
            seconds=round(seconds, 1),
        )

    def _recall_untrained(self, pictures: DemoSet) -> float | None:
        """None for a user's folder: embedding it a second time is not worth their minutes."""
        if self._options.images is not None:
            return None
        self._say("Embedding the same pictures with untrained weights, for comparison …")
        readable = {key: self._bodies[key] for key in pictures.photo_of}
        return round(recall_in_memory(UNTRAINED, pictures, readable, self._go_on), 4)

    def _go_on(self) -> None:
        if self._asked.is_set():
            raise Interrupted

    # -- telling -------------------------------------------------------------------------------------

    def _show(self, pictures: DemoSet, found: list[list[Hit]], url: str) -> None:
        if found:
            table = Table(
                "cosine distance", "asset", title=f"nearest to a held-out crop of {pictures.queries[0].photo}"
            )
            for hit in found[0]:
                table.add_row(f"{hit.distance:.3f}", hit.key.decode(errors="replace"))
            self._out.print(table)
        self._out.print(f"console {url}/\nmetrics {url}/metrics", highlight=False, soft_wrap=True)

    def _say(self, text: str) -> None:
        self._talk.print(text, highlight=False, soft_wrap=True, markup=False)


def _sizes(assets: int) -> dict[str, str]:
    """Nine shards of four chunks whatever the number of pictures, in two arrays of four and a lone job."""
    shard_assets = max(CHUNKS_A_SHARD, ceil(assets / SHARDS))
    return {
        "REEMBED_WORK__SHARD_ASSETS": str(shard_assets),
        "REEMBED_WORK__CHUNK_ASSETS": str(ceil(shard_assets / CHUNKS_A_SHARD)),
        "REEMBED_PLACEMENT__ARRAY_MAX": str(ARRAY_MAX),
    }
