"""Legal changes of state, and nothing else can be built: one named constructor a transition.

A change carries the states it expects; the store repeats them (and an attempt's token) in the WHERE clause.
One that matches no row was overtaken: it is counted as stale and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schema.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    REQUEST_MOVES,
    SHARD_MOVES,
    AttemptState,
    JobState,
    RequestState,
    ShardState,
)


def _values() -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class RequestChange:
    """`to` None: fields change, the state does not."""

    id: str
    expected: frozenset[RequestState]
    to: RequestState | None = None
    values: Mapping[str, Any] = field(default_factory=_values)

    def __post_init__(self) -> None:
        _check(self.expected, self.to, REQUEST_MOVES)


@dataclass(frozen=True, kw_only=True)
class ShardChange:
    """`attempt_id` set: only while that attempt is the shard's current one."""

    request_id: str
    shard: int
    expected: frozenset[ShardState]
    to: ShardState | None = None
    attempt_id: str | None = None
    values: Mapping[str, Any] = field(default_factory=_values)

    def __post_init__(self) -> None:
        _check(self.expected, self.to, SHARD_MOVES)


@dataclass(frozen=True, kw_only=True)
class AttemptChange:
    """Guarded by the token and, if `seq` is set, by a `last_seq` below it."""

    id: str
    token: str
    expected: frozenset[AttemptState]
    to: AttemptState | None = None
    seq: int | None = None
    values: Mapping[str, Any] = field(default_factory=_values)

    def __post_init__(self) -> None:
        _check(self.expected, self.to, ATTEMPT_MOVES)


@dataclass(frozen=True, kw_only=True)
class JobChange:
    id: str
    expected: frozenset[JobState]
    to: JobState | None = None
    values: Mapping[str, Any] = field(default_factory=_values)

    def __post_init__(self) -> None:
        _check(self.expected, self.to, JOB_MOVES)


def _check(expected: frozenset[Any], to: Any, moves: Mapping[Any, Mapping[Any, str]]) -> None:
    """Our own bug if it fails: nobody may build an illegal move."""
    for state in expected:
        assert to is None or to in moves[state], f"illegal move {state} -> {to}"
