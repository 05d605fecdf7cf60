"""The promises I1–I11, checked after every transaction that wrote, and once more at the end.

`Checker` keeps a copy of the rows as the transactions leave them, so it sees every change of state, and compares it
with what the models know: what workers really said, what stands on S3, what runs in Batch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controller.core import invariants
from controller.core.admission import admit
from controller.core.records import Attempt, Job, Lease, Operation, Request, Shard, TotalKey
from controller.loops.reports import parse as parse_report
from schema.layout import Location, commit_key, plan_key
from schema.plan import CommitMarker, Plan
from schema.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    OUTCOME_RULES,
    REQUEST_MOVES,
    SHARD_MOVES,
    SHARD_TERMINAL,
    AttemptState,
    Budget,
    JobKind,
    Outcome,
    RequestState,
    ShardState,
)
from tests.simulation.database import Written
from tests.simulation.scheduler import Scheduler
from tests.simulation.workers import SHARD_ASSETS, World

#: Ends that say nothing about the container: it may still run.
WITHOUT_EVIDENCE = {Outcome.SUCCEEDED, Outcome.LOST, Outcome.SUPERSEDED}
SUMMED = ("assets", "ok", "chunks_done", "chunks_reused")


@dataclass
class Checker:
    scheduler: Scheduler
    world: World
    control_bucket: str
    moved: Callable[[str, str, str], None] = lambda _what, _before, _after: None
    batch: Any = None
    requests: dict[str, Request] = field(default_factory=dict)
    shards: dict[tuple[str, int], Shard] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    lease: Lease | None = None
    totals: dict[TotalKey, float] = field(default_factory=dict)
    #: What the rows say that the totals are, and each attempt's part of it.
    expected: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    parts: dict[str, dict[tuple[str, str, str], float]] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    policy: Any = None
    failures: int = 4
    rejects: Callable[[], list[str]] = list

    def fail(self, text: str) -> None:
        self.violations.append(text)
        self.scheduler.note(f"VIOLATION {text}")

    # -- a transaction -----------------------------------------------------------------------------------

    def on_write(self, written: Written) -> None:
        rows = written.rows
        for lease in rows.get("leases", []):
            self.lease = lease
        for order in rows.get("operations", []):
            self.operations[order.id] = order
        for key, value in rows.get("totals", []):
            self.totals[key] = value
        for job in rows.get("jobs", []):
            self._job(job, written)
        for attempt in rows.get("attempts", []):
            self._attempt(attempt, written)
        for shard in rows.get("shards", []):
            self._shard(shard, written)
        for request in rows.get("requests", []):
            self._request(request)
        self._snapshot()
        for complaint in self.batch.complaints:
            self.fail(complaint)
        self.batch.complaints.clear()

    def _moves(self, what: str, table: Any, before: Any, after: Any) -> None:
        if before is None or before.state is after.state:
            return
        self.moved(what, before.state.value, after.state.value)
        if after.state not in table[before.state]:
            self.fail(f"{what} {_name(after)} went from {before.state} to {after.state}")

    def _job(self, job: Job, written: Written) -> None:
        before = self.jobs.get(job.id)
        if before == job:
            return
        writer = written.actor.process.name
        leads = self.lease is not None and self.lease.holder == writer
        if before is None and job.kind is not JobKind.PREPARE and not leads:
            self.fail(f"job {job.id} was written by {writer}, which did not lead")
        self._moves("job", JOB_MOVES, before, job)
        if before is not None and before.batch_job_id not in (None, job.batch_job_id):
            self.fail(f"I6: job {job.id} changed its Batch id")
        self.jobs[job.id] = job

    def _attempt(self, attempt: Attempt, written: Written) -> None:
        before = self.attempts.get(attempt.id)
        if before == attempt:
            return
        self._moves("attempt", ATTEMPT_MOVES, before, attempt)
        self.attempts[attempt.id] = attempt
        self._add_up(attempt)
        if before is None:
            self._resubmission(attempt, written)
            return
        if before.state is AttemptState.ENDED and before.outcome is not attempt.outcome:
            self.fail(f"attempt {attempt.id} ended twice: {before.outcome}, {attempt.outcome}")
        heard = attempt.last_seq != before.last_seq or attempt.worker_ended_at != before.worker_ended_at
        if heard and (attempt.id, attempt.token, attempt.last_seq) not in self.world.said:
            self.fail(f"I4: attempt {attempt.id} took a report that its worker never sent")
        if attempt.state is AttemptState.ENDED and before.state is not AttemptState.ENDED:
            self._ended(attempt)

    def _resubmission(self, attempt: Attempt, written: Written) -> None:
        """I5: what is committed is not run again."""
        shard = self.shards.get((attempt.request_id, attempt.shard)) if attempt.shard is not None else None
        place = None if shard is None else self._commit_place(shard)
        if place is None or shard is None:
            return
        since = self.world.objects.written_at.get((place.bucket, place.key))
        if since is not None and since < written.actor.step_began and self._valid_marker(shard) is not None:
            self.fail(f"I5: {_name(shard)} was committed before this step and is run again")

    def _ended(self, attempt: Attempt) -> None:
        child = self.world.begun.get(attempt.id)
        if attempt.outcome is Outcome.NO_CAPACITY and attempt.started_at is not None:
            self.fail(f"attempt {attempt.id} had started, and ended as {attempt.outcome}")
        if attempt.outcome is Outcome.LOST and child is not None and not child.job.forgotten:
            self.fail(f"I2: attempt {attempt.id} is given up as {attempt.outcome}, and Batch has it {child.status}")
        if attempt.outcome in WITHOUT_EVIDENCE:
            return
        mine = [c for c in self.batch.children() if c.job.spec.name == self.jobs[attempt.job_id].name]
        child = child or next((c for c in mine if c.index == attempt.array_index), None)
        if child is not None and not child.terminal and (child.alive or child.status in ("RUNNABLE", "STARTING")):
            self.fail(f"I2: attempt {attempt.id} ended as {attempt.outcome}, and Batch has it {child.status}")

    def _shard(self, shard: Shard, written: Written) -> None:
        before = self.shards.get((shard.request_id, shard.shard))
        if before == shard:
            return
        self._moves("shard", SHARD_MOVES, before, shard)
        self.shards[shard.request_id, shard.shard] = shard
        if before is None:
            self._planned(shard)
            return
        if before.state in SHARD_TERMINAL and before.state is not shard.state:
            ordered = any(order.request_id == shard.request_id for order in self.operations.values())
            if shard.state is ShardState.PENDING and (shard.generation != before.generation + 1 or not ordered):
                self.fail(f"I3: {_name(shard)} left {before.state} without an order and a new generation")
        if shard.state is ShardState.SUCCEEDED:
            marker = self._valid_marker(shard)
            if marker is None or marker.digest != shard.marker_digest:
                self.fail(f"I5: {_name(shard)} succeeded, and its marker on S3 is not the recorded one or not valid")

    def _planned(self, shard: Shard) -> None:
        body = self.world.objects.read(Location(self.control_bucket, plan_key(shard.request_id)))
        plan = None if body is None else Plan.model_validate_json(body)
        if plan is None or (shard.key, shard.sha256) != (plan.shards[shard.shard].key, plan.shards[shard.shard].sha256):
            self.fail(f"{_name(shard)} is not of the published plan")

    def _request(self, request: Request) -> None:
        self._moves("request", REQUEST_MOVES, self.requests.get(request.id), request)
        self.requests[request.id] = request

    def _snapshot(self) -> None:
        attempts = list(self.attempts.values())
        found = invariants.check(
            list(self.requests.values()), list(self.shards.values()), attempts, list(self.jobs.values())
        )
        for problem in found + self._totals() + self._budgets(attempts):
            if problem not in self.violations:
                self.fail(problem)

    def _totals(self) -> list[str]:
        """I9: what is exported equals what the rows say."""
        expected = self.expected
        shown = Counter(
            {(k.name, k.queue, k.label): v for k, v in self.totals.items() if k.name in (*SUMMED, "attempts")}
        )
        names = {key for key in expected | shown if round(expected[key]) != round(shown[key])}
        return [f"I9: {key} is {shown[key]:g}, the rows say {expected[key]}" for key in sorted(names)]

    def _add_up(self, attempt: Attempt) -> None:
        part: dict[tuple[str, str, str], float] = {}
        if attempt.outcome is not None:
            part["attempts", attempt.queue, attempt.outcome.value] = 1
        if attempt.kind is JobKind.INFER:
            figures = self._figures(attempt)
            part |= {(name, attempt.queue, ""): getattr(figures, name) for name in SUMMED}
        self.expected.subtract(self.parts.get(attempt.id, {}))
        self.expected.update(part)
        self.parts[attempt.id] = part

    def _budgets(self, attempts: list[Attempt]) -> list[str]:
        """I8: failures of the shard's own, over all outcomes of that budget."""
        spent = Counter(
            (a.request_id, a.shard, a.generation)
            for a in attempts
            if a.outcome is not None and OUTCOME_RULES[a.outcome].budget is Budget.FAILURES
        )
        over = [key for key, count in spent.items() if count > self.failures and key[1] is not None]
        return [f"I8: shard {request}/{shard} failed {spent[request, shard, g]} times" for request, shard, g in over]

    def _figures(self, attempt: Attempt) -> Any:
        marker = self.world.markers.get(attempt.id)
        counted = attempt.state is AttemptState.ENDED and attempt.outcome is Outcome.SUCCEEDED and marker is not None
        return marker.figures if counted and marker is not None else attempt.figures

    # -- messages ------------------------------------------------------------------------------------------

    def before_request_delete(self, body: str) -> None:
        """I1, at the moment when the message is about to be gone."""
        fact = admit(body, self.policy, self.scheduler.now())
        name = getattr(fact, "request_id", None)
        known = name in self.requests
        rejected = any(body in sent or json.dumps(body)[1:-1] in sent for sent in self.rejects())
        if not known and not rejected:
            self.fail(f"I1: a request message is deleted without a row or a rejection: {body[:200]}")

    def before_report_delete(self, body: str) -> None:
        report = parse_report(body)
        if report is None:
            return
        attempt = self.attempts.get(report.attempt_id)
        if attempt is None or attempt.token != report.token or attempt.state is AttemptState.ENDED:
            return
        if attempt.last_seq < report.seq:
            self.fail(f"report {report.seq} of attempt {attempt.id} is deleted before it is recorded")

    # -- the end -------------------------------------------------------------------------------------------

    def at_the_end(self) -> None:
        for request in self.requests.values():
            if request.state is RequestState.SUCCEEDED:
                self._output(request)
        for child in self.batch.children():
            if child.alive and not child.terminal:
                self.fail(f"I6: {child.id} of {child.job.spec.name} still runs")
        live = [a.id for a in self.attempts.values() if a.state is not AttemptState.ENDED]
        if live:
            self.fail(f"attempts {live} never ended")

    def _output(self, request: Request) -> None:
        """I11, read from the output itself."""
        manifest = Location.parse(request.manifest_uri or "s3://none/none")
        body = self.world.objects.read(manifest)
        if body is None:
            self.fail(f"I11: request {request.id} succeeded without a manifest")
            return
        content, output = json.loads(body), Location.parse(request.output_uri or "")
        rows: Counter[tuple[int, int]] = Counter()
        for number, key in content["markers"].items():
            marker = CommitMarker.model_validate_json(self.world.objects.read(output.join(key)) or b"{}")
            for chunk in marker.chunks:
                stored = json.loads(self.world.objects.read(output.join(chunk.key)) or b"{}")
                if stored.get("partial"):
                    self.fail(f"I11: request {request.id}: a partial chunk is in the output")
                rows.update((int(number), row) for row in stored.get("rows", []))
        listed = {(s, row) for s in range(self.world.shards[request.id]) for row in range(SHARD_ASSETS)}
        listed -= {(gap, row) for gap in content["gaps"] for row in range(SHARD_ASSETS)}
        if rows != Counter(dict.fromkeys(listed, 1)):
            self.fail(f"I11: request {request.id} has {len(rows)} rows of {len(listed)} assets, or some twice")
        if request.index is not None and self.world.alias.get(request.index) is None:
            self.fail(f"request {request.id} succeeded, and its index is not active")

    # -- markers -------------------------------------------------------------------------------------------

    def _commit_place(self, shard: Shard) -> Location | None:
        request = self.requests.get(shard.request_id)
        if request is None or request.output_uri is None:
            return None
        return Location.parse(request.output_uri).join(commit_key(shard.shard, shard.generation))

    def _valid_marker(self, shard: Shard) -> CommitMarker | None:
        place = self._commit_place(shard)
        body = None if place is None else self.world.objects.read(place)
        if body is None:
            return None
        marker = CommitMarker.model_validate_json(body)
        output = Location.parse(self.requests[shard.request_id].output_uri or "")
        there = [self.world.objects.read(output.join(chunk.key)) for chunk in marker.chunks]
        whole = all(body is not None and len(body) == c.bytes for body, c in zip(there, marker.chunks, strict=True))
        partial = any(".partial" in chunk.key for chunk in marker.chunks)
        rows = sum(chunk.rows for chunk in marker.chunks)
        return marker if whole and not partial and rows == SHARD_ASSETS == marker.rows else None


def _name(record: Any) -> str:
    return f"shard {record.request_id}/{record.shard}" if isinstance(record, Shard) else str(record.id)
