"""Settings of the controller: frozen, grouped, one file. Every field says its meaning, unit and why its default.

Read from the environment as `REEMBED_<GROUP>__<FIELD>` (for instance `REEMBED_DATABASE__URL`), from the JSON
or TOML file named by `REEMBED_CONFIG`, or given in code. Lists and tables are JSON.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    JsonConfigSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from controller.core.admission import Policy, TenantPolicy
from controller.core.outcome import Rule, table
from controller.core.placement import Order, QueueSpec
from controller.core.retry import Limits
from schema.messages import MAX_BODY_BYTES
from schema.states import Outcome


def problems(error: Exception) -> list[str]:
    """What is wrong, a line a setting; values are not repeated, they may be secret."""
    if not isinstance(error, ValidationError):
        return [str(error)]
    return [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Database(Group):
    url: SecretStr = Field(description="postgresql+asyncpg://user:password@host/database of the control database")
    pool_size: int = Field(default=10, ge=1, description="connections a replica; the loops and the API share them")
    migrate_on_start: bool = Field(default=False, description="run migrations before the loops; deploys do it apart")


class MessageQueues(Group):
    """SQS queue URLs. All standard queues."""

    requests: str = Field(description="upstream sends request.submit, request.cancel and request.amend here")
    reports: str = Field(description="workers report here")
    batch_events: str = Field(description="EventBridge target of aws.batch events")
    rejects: str = Field(description="messages that cannot be taken, with the reason and the fix")
    status: str = Field(description="status events for upstream")


class Storage(Group):
    control_bucket: str = Field(description="plans, shard files and assignments; not the output")
    bucket_owners: dict[str, str] = Field(
        default={},
        description="account id by bucket, sent as ExpectedBucketOwner: a bucket that changed hands is refused",
    )


class Family(Group):
    """One of several compute environments of a queue; the price of an attempt follows the one that it reports."""

    gpu_memory_mib: int | None = Field(default=None, ge=1, description="of one GPU")
    price_usd_per_hour: float = Field(gt=0, description="per attempt-hour in this environment")


class GpuQueue(Group):
    """One Batch job queue that runs inference. The order of the list is the order of preference."""

    name: str = Field(description="Batch job queue name")
    job_definition: str = Field(description="name:revision; pinned, since a bare name changes under our feet")
    multi_node_job_definition: str | None = Field(default=None, description="node range `0:`; on-demand queues only")
    on_demand: bool = Field(default=False, description="no spot; needed for multi-node jobs")
    max_live: int = Field(default=2000, ge=1, description="attempts submitted and not ended; the cap of this queue")
    backlog: int = Field(
        default=200, ge=1, description="attempts waiting to start; shallow, so that a dry queue strands little"
    )
    memory_mib: int | None = Field(default=None, description="memory of the smallest host, less what ECS keeps")
    large_memory_mib: int | None = Field(
        default=None,
        description="memory that a shard gets here once smaller batches did not help it; none: as `memory_mib`",
    )
    price_usd_per_hour: float = Field(default=1.0, gt=0, description="per attempt-hour, for forecasts")
    gpu_memory_mib: int | None = Field(default=None, ge=1, description="of one GPU; of several families the smallest")
    vcpus: int = Field(default=4, ge=1, description="of one attempt, against the quota; an .xlarge has 4")
    quota: str = Field(
        default="G and VT", description="name of the vCPU quota; AWS counts all G families together, spot apart"
    )
    families: dict[str, Family] = Field(default={}, description="by compute environment, where the queue has several")

    def smallest_gpu_memory_mib(self) -> int | None:
        """What a model may count on, whichever environment starts it."""
        known = [family.gpu_memory_mib or self.gpu_memory_mib for family in self.families.values()]
        sizes = [size for size in known or [self.gpu_memory_mib] if size is not None]
        return min(sizes) if len(sizes) == max(1, len(known)) else None


class Placement(Group):
    array_max: int = Field(default=1000, ge=2, le=10_000, description="children an array; 500–2,000 keeps it agile")
    start_seconds: float = Field(
        default=900.0,
        description="a queue that has waiting attempts and starts none for so long is dry (scaling takes minutes)",
    )
    reason_dwell_seconds: float = Field(
        default=300.0, description="a CAPACITY reason must stand so long; they appear while an environment scales up"
    )
    cooldown_seconds: float = Field(default=600.0, description="first wait before a dry queue is probed; doubles")
    cooldown_max_seconds: float = Field(default=7200.0, description="cap of the doubling")
    probe_size: int = Field(default=2, ge=1, description="attempts of the canary that probes a dry queue")
    stall_seconds: float = Field(
        default=300.0,
        description="a queue whose head waits longer is full: with capacity, an instance would be up by then",
    )
    order: Order = Field(
        default=Order.LISTED,
        description="which queue comes first: as listed, or by measured cost or speed once all of them are measured",
    )
    cost_spread: float = Field(
        default=2.0, ge=1, description="`order: cost` leaves out queues so many times dearer than the cheapest able one"
    )
    quota_vcpus: dict[str, int] = Field(
        default={},
        description="vCPU quotas by name (`G and VT, spot`), if known; then what is free goes to the preferred queue",
    )
    model_gpu_memory_mib: dict[str, int] = Field(
        default={}, description="GPU memory a model needs, by model; a queue with less never gets it"
    )
    speed_seconds: float = Field(
        default=300.0, description="between looks at the measured speeds, which read many rows"
    )


class Retries(Group):
    failures: int = Field(default=4, ge=1, description="attempts that may fail by the shard's own fault; then it fails")
    backoff_seconds: float = Field(default=30.0, description="first wait after a failure; doubles, with jitter")
    backoff_max_seconds: float = Field(default=900.0, description="cap of the doubling")
    isolate_after: int = Field(default=2, description="deaths on the same open chunk before it runs asset by asset")
    hold_after: int = Field(
        default=3, ge=1, description="attempts of a request in a row that end `config_error`; then it is paused"
    )

    def limits(self) -> Limits:
        return Limits(**self.model_dump())


class OutcomeRow(Group):
    """A row of an operator's own in the table that tells how an attempt ended. Rows are tried in their order, after a
    valid commit and our own stored intent, before the built-in ones; all given conditions must hold, and any value of
    one will do."""

    name: str = Field(min_length=1, description="in the log line of an attempt that it decides; unlike any other")
    outcome: Outcome = Field(description="what is concluded; not what only facts of ours can tell")
    status_reason: list[str] = Field(default=[], description="prefixes of the Batch job's reason")
    container_reason: list[str] = Field(default=[], description="prefixes of the container's reason")
    mentions: list[str] = Field(default=[], description="words anywhere in either reason, whatever the case")
    exit_codes: list[int] = Field(default=[], description="exit codes, the worker's own word before Batch's")
    started: bool | None = Field(default=None, description="whether it had started")

    def rule(self) -> Rule:
        return Rule(
            name=self.name,
            outcome=self.outcome,
            status_reason=tuple(self.status_reason),
            container_reason=tuple(self.container_reason),
            mentions=tuple(self.mentions),
            exit_codes=tuple(self.exit_codes),
            started=self.started,
        )


class Reconcile(Group):
    check_seconds: float = Field(default=60.0, description="I7: every live attempt is looked at at least so often")
    report_grace_seconds: float = Field(default=20.0, description="Batch says it ended: wait so long for the report")
    lost_seconds: float = Field(default=900.0, description="without any contact, and `lost_misses` misses: lost")
    lost_misses: int = Field(default=3, description="DescribeJobs answers without the job before it is lost")
    call_timeout_seconds: float = Field(default=20.0, description="SubmitJob time-out, the base of the look-up grace")
    lookup_grace_seconds: float = Field(
        default=120.0, description="absent from ListJobs for so long after the call: submit anew under a new name"
    )
    orphan_seconds: float = Field(default=300.0, description="between scans for jobs with our prefix and no row")


class Work(Group):
    """Sizes frozen in a plan."""

    shard_assets: int = Field(default=20_000, ge=1, description="15–30 minutes on the slowest queue")
    chunk_assets: int = Field(default=1024, ge=1, description="20–60 seconds of work, one Parquet object")
    max_assets: int = Field(default=1_000_000_000, description="a request over it is refused by preparation")
    index_shards: int = Field(default=200, ge=1, description="shards a load job of the index takes at most")
    index_rows_per_second: int | None = Field(default=None, description="limit of one load job; none: as it comes")
    heartbeat_seconds: float = Field(default=15.0, description="between heartbeats of a worker")
    attempt_timeout_seconds: int = Field(default=7200, ge=60, description="Batch kills an attempt after so long")
    fetch_concurrency: int = Field(default=64, ge=1, description="GETs in flight a worker, the start of AIMD")


class CpuJobs(Group):
    queue: str = Field(description="Batch job queue of prepare and index jobs")
    prepare_definition: str = Field(description="name:revision")
    index_definition: str = Field(description="name:revision; carries the index database's secret")


class Tenant(Group):
    """Allow-lists. An input or output entry is an S3 URI that ends in `/` (everything below) or names a bucket."""

    inputs: list[str] = Field(description="what its requests may read")
    outputs: list[str] = Field(description="where its requests may write")
    models: list[str] = Field(default=["*"], description="model names, `*` for every registered one")


class Api(Group):
    host: str = Field(default="127.0.0.1", description="a non-loopback address needs `token`")
    port: int = Field(default=8080, description="of the REST API, the console, /metrics and the health checks")
    token: SecretStr | None = Field(default=None, description="bearer token of every call but the health checks")


class Loops(Group):
    lease_seconds: float = Field(default=15.0, description="leadership; a dead leader is replaced within so long")
    claim_seconds: float = Field(default=60.0, description="row claims; a dead replica's rows are free after so long")
    idle_seconds: float = Field(default=1.0, description="pause of a loop that had nothing to do")
    poll_seconds: float = Field(
        default=10.0, ge=0, le=20, description="long poll of an SQS queue, at most 20; a stop waits for it"
    )
    heartbeat_limit_seconds: float = Field(default=120.0, description="/livez fails when a loop is silent for so long")
    progress_seconds: float = Field(default=60.0, description="between progress events of a request")
    page: int = Field(default=500, ge=1, description="rows a loop takes in one step")


class FileFirst(BaseSettings):
    """A settings source chain: arguments, environment, then the file of REEMBED_CONFIG."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: list[Any] = [init_settings, env_settings]
        path = os.environ.get("REEMBED_CONFIG")
        if path:
            if not Path(path).is_file():
                raise FileNotFoundError(f"REEMBED_CONFIG names {path!r}, which is not a file")
            source = TomlConfigSettingsSource if path.endswith(".toml") else JsonConfigSettingsSource
            sources.append(source(settings_cls, path))
        return tuple(sources)


class Settings(FileFirst):
    """All of it. `Settings()` reads the environment; a missing or wrong field names itself in the error."""

    model_config = SettingsConfigDict(env_prefix="REEMBED_", env_nested_delimiter="__", frozen=True, extra="ignore")

    database: Database
    sqs: MessageQueues
    storage: Storage
    cpu: CpuJobs
    gpu_queues: list[GpuQueue] = Field(min_length=1, description="the fallback order")
    models: list[str] = Field(min_length=1, description="registered models, name@version")
    tenants: dict[str, Tenant] = Field(description="who may ask, by name")
    placement: Placement = Placement()
    retries: Retries = Retries()
    outcomes: list[OutcomeRow] = Field(default=[], description="rows before the built-in ones of the outcome table")
    reconcile: Reconcile = Reconcile()
    work: Work = Work()
    api: Api = Api()
    loops: Loops = Loops()
    replica: str | None = Field(default=None, description="name of this replica; default host-pid")

    @field_validator("outcomes")
    @classmethod
    def _outcomes_stand(cls, rows: list[OutcomeRow]) -> list[OutcomeRow]:
        table([row.rule() for row in rows])
        return rows

    def outcome_table(self) -> tuple[Rule, ...]:
        return table([row.rule() for row in self.outcomes])

    @model_validator(mode="after")
    def _memory_is_known(self) -> Settings:
        """A model with a need can only be kept off small cards if every queue says what it has."""
        unknown = [queue.name for queue in self.gpu_queues if queue.smallest_gpu_memory_mib() is None]
        if self.placement.model_gpu_memory_mib and unknown:
            raise ValueError(
                f"gpu_memory_mib is missing for {', '.join(unknown)}: placement.model_gpu_memory_mib is set"
            )
        return self

    def queue_specs(self) -> list[QueueSpec]:
        """The GPU queues as placement sees them."""
        return [
            QueueSpec(
                name=queue.name,
                max_live=queue.max_live,
                backlog=queue.backlog,
                price_usd_per_hour=queue.price_usd_per_hour,
                on_demand=queue.on_demand,
                multi_node=queue.multi_node_job_definition is not None,
                gpu_memory_mib=queue.smallest_gpu_memory_mib(),
                quota=f"{queue.quota}, {'on-demand' if queue.on_demand else 'spot'}",
                vcpus=queue.vcpus,
            )
            for queue in self.gpu_queues
        ]

    def prices_usd_per_hour(self) -> dict[str, float]:
        """By queue, and by compute environment where a queue has several."""
        families = {name: family.price_usd_per_hour for q in self.gpu_queues for name, family in q.families.items()}
        return families | {queue.name: queue.price_usd_per_hour for queue in self.gpu_queues}

    def policy(self) -> Policy:
        """What admission may let in; ValueError when an allow-list entry is not an S3 URI."""
        return Policy(
            tenants={
                name: TenantPolicy(inputs=tuple(t.inputs), outputs=tuple(t.outputs), models=tuple(t.models))
                for name, t in self.tenants.items()
            },
            models=frozenset(self.models),
            queues={queue.name: queue.on_demand for queue in self.gpu_queues},
            max_body_bytes=MAX_BODY_BYTES,
            holding={
                model: frozenset(q.name for q in self.gpu_queues if (q.smallest_gpu_memory_mib() or 0) >= need)
                for model, need in self.placement.model_gpu_memory_mib.items()
            },
        )
