"""The fault requests of `POST /_faults`, one model a fault, and arming them.

    {"fault": "reclaim", "queue": "g6e"}                  kill -9 the next running job there, as Spot does
    {"fault": "reclaim", "job_id": "…", "after_seconds": 2}
    {"fault": "oom", …} {"fault": "exit", "code": 3, …}   as reclaim, with another end
    {"fault": "refuse_capacity", "queue": "g6e", "seconds": 5}     dry for 5 s; without seconds until cleared
    {"fault": "refuse_capacity", "compute_environment": "g6e-spot", "silent": true}       and no reason is given
    {"fault": "refuse_capacity", "queue": "g6e", "clear": true}
    {"fault": "pull_failure", "queue": "g6", "count": 1}
    {"fault": "lost_response", "count": 1}                SubmitJob takes effect, the connection closes unanswered
    {"fault": "server_error", "operation": "DescribeJobs", "count": 2}     operation defaults to every operation
    {"fault": "throttle", "operation": "SubmitJob", "count": 2}
    {"fault": "slow", "operation": "SubmitJob", "count": 1, "seconds": 3}  takes effect, answers late
    {"fault": "drop_events", "count": 5}
    {"fault": "age_out", "job_id": "…"}                   forget a finished top-level job

Seconds here are real seconds. A malformed request is a pydantic error, shown to the caller as a 400.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from deploy.local.batch.errors import ClientError
from deploy.local.batch.faults import ANY_OPERATION, Ambush, Faults
from deploy.local.batch.registry import Registry
from deploy.local.batch.scheduler import Scheduler
from deploy.local.batch.stops import StopCause, StopOrder


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _OnJob(_Fault):
    queue: str | None = None
    job_id: str | None = None
    after_seconds: float = Field(default=0.0, ge=0)


class Reclaim(_OnJob):
    fault: Literal["reclaim"] = "reclaim"


class OutOfMemory(_OnJob):
    fault: Literal["oom"] = "oom"


class Exit(_OnJob):
    fault: Literal["exit"] = "exit"
    code: int = Field(ge=0, le=255)


class RefuseCapacity(_Fault):
    fault: Literal["refuse_capacity"] = "refuse_capacity"
    queue: str | None = None
    compute_environment: str | None = None
    seconds: float | None = Field(default=None, gt=0)
    clear: bool = False
    silent: bool = False
    reason: str | None = Field(default=None, description="instead of CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY - …")

    @model_validator(mode="after")
    def _one_place(self) -> RefuseCapacity:
        if (self.queue is None) == (self.compute_environment is None):
            raise ValueError("name a queue or a compute environment")
        return self


class PullFailure(_Fault):
    fault: Literal["pull_failure"] = "pull_failure"
    queue: str | None = None
    count: int = Field(default=1, ge=1)


class LostResponse(_Fault):
    fault: Literal["lost_response"] = "lost_response"
    count: int = Field(default=1, ge=0)


class _OnCall(_Fault):
    operation: str = ANY_OPERATION
    count: int = Field(default=1, ge=0)


class ServerErrors(_OnCall):
    fault: Literal["server_error"] = "server_error"


class Throttle(_OnCall):
    fault: Literal["throttle"] = "throttle"


class Slow(_OnCall):
    fault: Literal["slow"] = "slow"
    seconds: float = Field(gt=0)


class DropEvents(_Fault):
    fault: Literal["drop_events"] = "drop_events"
    count: int = Field(ge=0)


class AgeOut(_Fault):
    fault: Literal["age_out"] = "age_out"
    job_id: str


FaultRequest = (
    Reclaim
    | OutOfMemory
    | Exit
    | RefuseCapacity
    | PullFailure
    | LostResponse
    | ServerErrors
    | Throttle
    | Slow
    | DropEvents
    | AgeOut
)
_ADAPTER: TypeAdapter[FaultRequest] = TypeAdapter(Annotated[FaultRequest, Field(discriminator="fault")])


def parse(body: bytes) -> FaultRequest:
    return _ADAPTER.validate_json(body)


def arm(request: FaultRequest, faults: Faults, registry: Registry, scheduler: Scheduler) -> None:
    match request:
        case Reclaim():
            _lay(request, StopOrder(StopCause.RECLAIMED), faults, registry)
        case OutOfMemory():
            _lay(request, StopOrder(StopCause.OUT_OF_MEMORY), faults, registry)
        case Exit():
            _lay(request, StopOrder(StopCause.FORCED_EXIT, exit_code=request.code), faults, registry)
        case RefuseCapacity():
            _refuse_capacity(request, faults, registry, scheduler)
        case PullFailure():
            faults.fail_pulls(request.queue, request.count)
        case LostResponse():
            faults.lost_responses = request.count
        case ServerErrors():
            faults.fail_calls(request.operation, request.count)
        case Throttle():
            faults.throttle_calls(request.operation, request.count)
        case Slow():
            faults.slow_calls(request.operation, request.count, request.seconds)
        case DropEvents():
            faults.drop_events = request.count
        case AgeOut():
            job = registry.job(request.job_id)
            if job is None or not registry.forget(job):
                raise ClientError(f"{request.job_id} is not a finished top-level job")
            faults.count("aged_out")


def _lay(request: _OnJob, order: StopOrder, faults: Faults, registry: Registry) -> None:
    if request.queue is not None and registry.queue(request.queue) is None:
        raise ClientError(f"no queue {request.queue}")
    if request.job_id is not None:
        job = registry.job(request.job_id)
        if job is None or job.terminal:
            raise ClientError(f"no unfinished job {request.job_id}")
    faults.lay(Ambush(order, request.queue, request.job_id, request.after_seconds))


def _refuse_capacity(request: RefuseCapacity, faults: Faults, registry: Registry, scheduler: Scheduler) -> None:
    place = request.queue or request.compute_environment or ""
    if place not in registry.queues and place not in registry.environments:
        raise ClientError(f"no queue or compute environment {place}")

    if request.clear:
        faults.end_shortage(place)
    else:
        spell = faults.start_shortage(place, request.silent, request.reason)
        if request.seconds is not None:

            def over() -> None:
                faults.end_shortage(place, spell)
                scheduler.wake_all()

            asyncio.get_running_loop().call_later(request.seconds, over)
    scheduler.wake_all()
