"""Slots and instances of compute environments: which can take a job, taking them, giving them back.

A slot is one instance. All-or-nothing for the nodes of a multi-node job. It knows nothing of queues' order; the
scheduler asks it for a verdict about the head of one queue.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deploy.local.batch import container
from deploy.local.batch.model import ComputeEnvironment, Job, JobQueue, Kind


class Refusal(StrEnum):
    """Why the head of a queue cannot start now; BUSY carries no reason in the API."""

    BUSY = "busy"
    DRY = "dry"
    TOO_BIG = "too_big"
    ABOVE_MAXIMUM = "above_maximum"
    NO_ENVIRONMENT = "no_environment"


@dataclass(frozen=True, slots=True)
class DrySpell:
    """An injected shortage. A silent one gives the head no reason at all."""

    number: int
    silent: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    environment: ComputeEnvironment
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    refusal: Refusal
    dry_spell: DrySpell | None = None


def ask(queue: JobQueue, job: Job, dry: Mapping[str, DrySpell]) -> Grant | Verdict:
    """Slots for the job in the first environment of the queue that has them, else why not."""
    enabled = [environment for environment in queue.environments if environment.enabled]
    if not enabled:
        return Verdict(Refusal.NO_ENVIRONMENT)
    width = job.spec.num_nodes if job.kind is Kind.MULTI_NODE else 1
    fitting = [environment for environment in enabled if _fits(environment, job)]
    if not fitting:
        return Verdict(Refusal.TOO_BIG)
    fitting = [environment for environment in fitting if environment.slots >= width]
    if not fitting:
        return Verdict(Refusal.ABOVE_MAXIMUM)
    if queue.name in dry:
        return Verdict(Refusal.DRY, dry[queue.name])
    if width > 1:
        fitting = fitting[:1]  # a multi-node job waits for the first environment even if a lower one could serve
    shortages = [dry[environment.name] for environment in fitting if environment.name in dry]
    for environment in fitting:
        if environment.name not in dry and environment.free >= width:
            return Grant(environment, _take(environment, width))
    if len(shortages) == len(fitting):
        return Verdict(Refusal.DRY, shortages[0])
    return Verdict(Refusal.BUSY)


def give_back(grant: Grant, lost: Sequence[str]) -> None:
    """Free the slots; an instance that was lost never comes back."""
    grant.environment.used -= len(grant.instances)
    grant.environment.idle_instances += [instance for instance in grant.instances if instance not in lost]


def _fits(environment: ComputeEnvironment, job: Job) -> bool:
    shape = environment.shape
    return (
        container.requirement(job, "GPU") <= shape.gpus
        and container.requirement(job, "VCPU") <= shape.vcpus
        and container.requirement(job, "MEMORY") <= shape.usable_memory_mib
    )


def _take(environment: ComputeEnvironment, width: int) -> tuple[str, ...]:
    environment.used += width
    idle = environment.idle_instances
    return tuple(idle.pop() if idle else f"i-0{secrets.token_hex(8)}" for _ in range(width))
