"""What to do: the values that core hands to the loops."""

from __future__ import annotations

from dataclasses import dataclass

from controller.core.changes import AttemptChange, ShardChange
from controller.core.records import QueueState, Shard
from schema.states import Outcome, StopIntent


@dataclass(frozen=True, kw_only=True)
class StartAttempts:
    """Write one job with an attempt for each shard, in this order of array indexes."""

    request_id: str
    queue: str
    shards: tuple[Shard, ...]
    multi_node: bool = False


@dataclass(frozen=True, kw_only=True)
class StopUnstarted:
    """Store the intent for attempts of the queue that have not started, the newest first."""

    queue: str
    intent: StopIntent
    request_id: str | None = None
    """Of this request only."""
    attempts: int | None = None
    """At most so many; None: all."""


@dataclass(frozen=True, kw_only=True)
class KeepQueue:
    """Remember the queue's new state."""

    state: QueueState


Decision = StartAttempts | StopUnstarted | KeepQueue


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """How an attempt ended and what becomes of its shard."""

    outcome: Outcome
    attempt: AttemptChange
    shard: ShardChange | None = None
    rule: str
