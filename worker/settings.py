"""The worker's environment, read once. Everything about the work itself stands in the assignment instead.

Batch fills the `AWS_BATCH_*` variables; a job definition may set the `REEMBED_*` ones. No secret is read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from schema.assignment import ENVIRONMENT_VARIABLE


@dataclass(frozen=True)
class BatchIdentity:
    """Who Batch says we are. All None outside Batch."""

    job_id: str | None = None
    queue: str | None = None
    compute_environment: str | None = None
    array_index: int | None = None
    node_index: int | None = None
    num_nodes: int | None = None
    main_node_index: int | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BatchIdentity:
        return cls(
            job_id=environment.get("AWS_BATCH_JOB_ID"),
            queue=environment.get("AWS_BATCH_JQ_NAME"),
            compute_environment=environment.get("AWS_BATCH_CE_NAME"),
            array_index=_number(environment, "AWS_BATCH_JOB_ARRAY_INDEX"),
            node_index=_number(environment, "AWS_BATCH_JOB_NODE_INDEX"),
            num_nodes=_number(environment, "AWS_BATCH_JOB_NUM_NODES"),
            main_node_index=_number(environment, "AWS_BATCH_JOB_MAIN_NODE_INDEX"),
        )

    @property
    def entry_index(self) -> int:
        """Which entry of the assignment is ours: array child, node, or the lone job's only one."""
        if self.array_index is not None:
            return self.array_index
        return self.node_index or 0


@dataclass(frozen=True)
class Settings:
    """Frozen for the life of the process."""

    assignment_uri: str
    batch: BatchIdentity
    ranks: int | None = None
    """Engines of this node. None: one for each GPU, or one on the CPU."""
    decoders: int | None = None
    """Decode processes of a rank. None: the CPUs left after fetch and engine, shared by the ranks; at least one."""
    stop_seconds: float = 20.0
    """How long an open chunk may go on after SIGTERM; Batch sends SIGKILL at 30."""
    peers_idle_seconds: float = 300.0
    """The main node of a multi-node job gives up on the others after so long without a new marker or chunk."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, *, ranks: int | None = None) -> Settings:
        """ValueError when a variable is missing or is not a number."""
        environment = os.environ if environment is None else environment
        uri = environment.get(ENVIRONMENT_VARIABLE, "")
        if not uri:
            raise ValueError(f"{ENVIRONMENT_VARIABLE} is not set: it holds the S3 URI of the assignment")
        return cls(
            assignment_uri=uri,
            batch=BatchIdentity.from_environment(environment),
            ranks=ranks if ranks is not None else _number(environment, "REEMBED_RANKS"),
            decoders=_number(environment, "REEMBED_DECODERS"),
            stop_seconds=float(environment.get("REEMBED_STOP_SECONDS", cls.stop_seconds)),
            peers_idle_seconds=float(environment.get("REEMBED_PEERS_IDLE_SECONDS", cls.peers_idle_seconds)),
        )


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text else None
