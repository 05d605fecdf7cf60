"""Planted bugs: product code as somebody might have written it. The simulation has to find each of them.

A mutation is a function that patches and gives what undoes it; `MUTATIONS` holds them by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from controller.core import progress, transitions
from controller.loops import dispatch, plan, reports, settle, submit
from controller.ports import Unavailable
from controller.store import attempts, leases, requests, shards
from schema.layout import Location
from schema.plan import CommitMarker, Figures, Plan
from schema.states import JobKind
from tests.simulation.scheduler import ACTOR
from tests.simulation.workers import commits

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
MUTATIONS: dict[str, Callable[[ExitStack], None]] = {}


def mutation(plant: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
    MUTATIONS[plant.__name__.replace("_", " ")] = plant
    return plant


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        MUTATIONS[name](stack)
        yield


def _swap(stack: ExitStack, target: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by what `make` builds around the original."""
    stack.enter_context(patch.object(target, name, make(getattr(target, name))))


@mutation
def state_guard_dropped(stack: ExitStack) -> None:
    def unguarded(apply: Any) -> Any:
        async def applied(self: Any, change: Any) -> bool:
            states = frozenset(type(next(iter(change.expected))))
            loose = replace(change)
            object.__setattr__(loose, "expected", states)
            return await apply(self, loose)

        return applied

    for owner in (requests.SqlRequests, shards.SqlShards, attempts.SqlAttempts):
        _swap(stack, owner, "apply", unguarded)


@mutation
def token_guard_dropped(stack: ExitStack) -> None:
    def any_token(heard: Any) -> Any:
        return lambda attempt, report, now: heard(attempt, report.model_copy(update={"token": attempt.token}), now)

    _swap(stack, transitions, "heard", any_token)


@mutation
def resubmission_before_the_look_up(stack: ExitStack) -> None:
    async def submit_again(self: Any, job: Any, now: Any) -> bool:
        async with self._context.store.transaction() as tx:
            request = await tx.requests.get(job.request_id)
        return await self._submit(job, request, now)

    _swap(stack, submit.Submission, "_look_up", lambda _original: submit_again)


@mutation
def marker_not_read_before_a_resubmission(stack: ExitStack) -> None:
    async def all_of_them(self: Any, found: Sequence[Any], requests: Any, **_: Any) -> Sequence[Any]:
        return found

    _swap(stack, dispatch.Dispatch, "_without_commits", lambda _original: all_of_them)


@mutation
def commit_without_if_none_match(stack: ExitStack) -> None:
    def overwrite(s3: Any, _output: Location, place: Location, marker: CommitMarker, **_: Any) -> CommitMarker:
        s3.put_object(Bucket=place.bucket, Key=place.key, Body=marker.to_bytes())
        return marker

    _swap(stack, commits, "commit", lambda _original: overwrite)


@mutation
def epoch_not_joined(stack: ExitStack) -> None:
    async def whatever(self: Any, name: str, lease: Any) -> None:
        return

    _swap(stack, leases.SqlLeases, "fence", lambda _original: whatever)


@mutation
def claim_not_released_on_crash(stack: ExitStack) -> None:
    def for_ever(claim: Any) -> Any:
        async def claimed(self: Any, states: Any, holder: str, now: Any, until: Any, limit: int) -> Any:
            return await claim(self, states, holder, LONG_AGO, until, limit)

        return claimed

    _swap(stack, requests.SqlRequests, "claim", for_ever)


@mutation
def budget_kept_in_a_counter(stack: ExitStack) -> None:
    counted: Counter[Any] = Counter()

    def by_memory(decide: Any) -> Any:
        def decided(outcome: Any, history: Sequence[Any], now: Any, limits: Any, jitter: float) -> Any:
            last = history[-1]
            key = (ACTOR.get().process, last.request_id, last.shard, last.generation)
            counted[key] += 1
            return decide(outcome, list(history)[-counted[key] :], now, limits, jitter)

        return decided

    _swap(stack, transitions, "decide", by_memory)


@mutation
def cancel_believed_on_its_200(stack: ExitStack) -> None:
    def believed(stop_asked: Any) -> Any:
        def changed(attempt: Any, now: Any) -> Any:
            change = stop_asked(attempt, now)
            ended = {"batch_status": "FAILED", "batch_status_reason": "cancelled", "batch_ended_at": now}
            return replace(change, values={**change.values, **ended})

        return changed

    _swap(stack, transitions, "stop_asked", believed)


@mutation
def unpublished_plan_accepted(stack: ExitStack) -> None:
    def eager(advance: Any) -> Any:
        async def advanced(self: Any, request: Any, now: Any) -> bool:
            context = self._context
            async with context.store.transaction() as tx:
                made = await tx.attempts.of_kind(request.id, JobKind.PREPARE)
            for attempt in made:
                body = await context.objects.get(context.control(f"requests/{request.id}/plan/{attempt.id}/plan.json"))
                if body is not None:
                    return await self._publish(request, Plan.model_validate_json(body), now)
            return await advance(self, request, now)

        return advanced

    _swap(stack, plan.PlanLoop, "_advance", eager)


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@mutation
def partial_chunk_named_by_a_marker(stack: ExitStack) -> None:
    _swap(stack, settle, "chunk_key", lambda _original: lambda *_: _Anything())


@mutation
def report_deleted_before_its_transaction(stack: ExitStack) -> None:
    async def hasty(self: Any, now: Any) -> Any:
        inbox = self._context.inboxes.reports
        deliveries = await inbox.receive(limit=50, wait_seconds=self._context.settings.loops.poll_seconds)
        await inbox.delete(deliveries)
        for delivery in deliveries:
            report = reports.parse(delivery.body)
            if report is not None:
                try:
                    await self._take(report, self._context.clock.now())
                except Unavailable:
                    continue
        return reports.Outcome.BUSY if deliveries else reports.Outcome.IDLE

    _swap(stack, reports.Reports, "step", lambda _original: hasty)


@mutation
def requeue_without_a_new_generation(stack: ExitStack) -> None:
    def same(requeued: Any) -> Any:
        def changed(shard: Any, *rest: Any, **more: Any) -> Any:
            change = requeued(shard, *rest, **more)
            return replace(change, values={**change.values, "generation": shard.generation})

        return changed

    _swap(stack, transitions, "requeued", same)


@mutation
def metrics_counted_twice_for_a_repeated_report(stack: ExitStack) -> None:
    def from_zero(_figure_deltas: Any) -> Any:
        return lambda _before, after: progress.figure_deltas(Figures(), after)

    _swap(stack, reports, "figure_deltas", from_zero)
