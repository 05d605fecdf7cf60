"""One vCPU quota for several queues: AWS counts all G families together, spot apart from on-demand.

Where the quota is known, what is free of it is offered to the preferred queue first, whole; a less preferred queue
gets what that one did not start in the time that an instance takes to come up. So the quota fills with the preferred
family, and what ends elsewhere is replaced at once. Where the quota is not known, its wall shows as all circuits open
at once: see circuits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from math import ceil

from controller.core.placement import QueueSpec
from controller.core.records import Circuit, QueueLoad, QueueState

#: Of what runs: so many end before the next look, and their instances shall find work.
_ENDING = 0.05


def groups(queues: Sequence[QueueSpec]) -> list[list[QueueSpec]]:
    """Queues that share a quota, each group in the order of preference."""
    ordered = sorted(queues, key=lambda spec: spec.quota)
    return [list(group) for _, group in groupby(ordered, key=lambda spec: spec.quota)]


def within_quotas(
    rooms: Mapping[str, int],
    queues: Sequence[QueueSpec],
    loads: Mapping[str, QueueLoad],
    quota_vcpus: Mapping[str, int],
    stall_seconds: float,
    now: datetime,
) -> dict[str, int]:
    """`rooms` with those of known quotas changed; a queue without room gets none here either."""
    limited = dict(rooms)
    for group in groups(queues):
        if group[0].quota not in quota_vcpus:
            continue
        free = quota_vcpus[group[0].quota] - sum(loads[spec.name].running * spec.vcpus for spec in group)
        able = [spec for spec in group if rooms[spec.name] > 0 or loads[spec.name].waiting]
        for spec in able:
            load = loads[spec.name]
            replaced = ceil(load.running * _ENDING) if rooms[spec.name] else 0
            offered = max(0, free // spec.vcpus + replaced - load.waiting)
            if spec is able[0] and rooms[spec.name]:
                cap = max(0, spec.max_live - load.running - load.submitting - load.queued)
                limited[spec.name] = min(cap, max(rooms[spec.name], offered))
            else:
                limited[spec.name] = min(rooms[spec.name], offered)
            starting = 0 if load.stalled(stall_seconds, now) else load.waiting
            free = max(0, free - (limited[spec.name] + starting) * spec.vcpus)
    return limited


def at_the_wall(
    queues: Sequence[QueueSpec], states: Mapping[str, QueueState], quota_vcpus: Mapping[str, int]
) -> list[QueueSpec]:
    """The less preferred queues of a known quota that is dry as a whole: what waits there would take from the
    preferred one what comes back."""
    found: list[QueueSpec] = []
    for group in groups(queues):
        dry = all(states[spec.name].circuit is not Circuit.CLOSED for spec in group)
        if dry and group[0].quota in quota_vcpus:
            found += group[1:]
    return found
