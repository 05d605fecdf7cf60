"""One seed: two or three controllers, three requests, a fault every dozen seconds, every promise checked.

`Simulation(seed).run()` on a `Server`. The loops and the store are the product's own; what they call is a model. Faults
stop at `END_SECONDS`; after that everything must come to an end by itself (I10), with an operator who requeues.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any

import structlog

from controller import main
from controller.core.admission import request_id
from controller.core.records import Operation, OperationKind, Request
from controller.loops.context import Context, Inboxes, Outboxes
from controller.loops.runner import Loop, Outcome
from controller.ports import Fenced, PortError
from controller.settings import Settings
from controller.store.store import PostgresStore
from schema.messages import MessageType, RequestCancel, RequestSubmit, encode
from schema.states import REQUEST_TERMINAL, AttemptState, JobState, RequestState, ShardState
from tests.simulation.batch import Child, SimBatch, Worker
from tests.simulation.checks import Checker
from tests.simulation.coverage import Covered
from tests.simulation.database import Server
from tests.simulation.faults import END_SECONDS, Faults
from tests.simulation.messages import Queue
from tests.simulation.objects import Objects
from tests.simulation.scheduler import ACTOR, Actor, Crashed, Process, Scheduler
from tests.simulation.settings import CAPACITY, simulated_settings
from tests.simulation.workers import SHARD_ASSETS, Habits, World, start

MOST_SECONDS = END_SECONDS + 2500.0
IDLE_SECONDS = 18.0
SHARDS = (10, 10, 10)
COVERED_SECONDS = 20.0
#: What an operator does about a request that needs one, by weight.
ORDERS = {
    OperationKind.REQUEUE_SHARDS: 8,
    OperationKind.ACCEPT_FAILURES: 1,
    OperationKind.FAIL_REQUEST: 1,
    OperationKind.CANCEL_REQUEST: 1,
}


@dataclass
class Result:
    seed: int
    steps: int
    seconds: float
    faults: Counter[str]
    violations: list[str]
    log: list[str]
    covered: Covered = field(default_factory=Counter)


class SimClock:
    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def now(self) -> Any:
        return self._scheduler.now(self._process)

    def monotonic(self) -> float:
        return self._scheduler.time

    async def sleep(self, seconds: float) -> None:
        await self._scheduler.sleep(seconds)


class SimEntropy:
    def __init__(self, scheduler: Scheduler) -> None:
        self._dice = scheduler.dice

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{self._dice.getrandbits(80):020x}"

    def token(self) -> str:
        return f"{self._dice.getrandbits(128):032x}"

    def uniform(self) -> float:
        return self._dice.random()


class SimRecorder:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self.counts[name] += 1

    def publish(self, states: object, totals: object) -> None:
        return

    def withdraw(self) -> None:
        return


class Simulation:
    def __init__(self, seed: int, server: Server) -> None:
        self.seed, self.server = seed, server
        self.scheduler = scheduler = Scheduler(seed)
        # Some deployments forgive little: only there much needs an operator.
        self.settings: Settings = simulated_settings(failures=scheduler.dice.choice([1, 2, 4, 4]))
        self.objects = Objects(scheduler)
        self.incoming, self.reports, self.events = (Queue(scheduler, n) for n in ("requests", "reports", "events"))
        self.status, self.rejects = Queue(scheduler, "status"), Queue(scheduler, "rejects")
        self.world = World(scheduler, self.objects, self.reports, Habits())
        self.batch = SimBatch(scheduler, self.events, CAPACITY, self._start_worker)
        self.faults = Faults(self)
        self.covered: Covered = Counter()
        self.checker = Checker(scheduler, self.world, self.settings.storage.control_bucket, self._moved)
        self.checker.batch, self.checker.policy = self.batch, self.settings.policy()
        self.checker.failures = self.settings.retries.failures
        self.checker.rejects = lambda: self.rejects.sent
        self.incoming.before_delete = self.checker.before_request_delete
        self.reports.before_delete = self.checker.before_report_delete
        self.world.fired = self.faults.fire
        self.database = server.attach(scheduler, self.checker.on_write)
        self.store = PostgresStore(self.database)  # type: ignore[arg-type]
        self.processes: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._operator = Actor(Process("operator"), "operator")
        self._asked: set[str] = set()
        self.recorder = SimRecorder()
        scheduler.choose_fault = self.faults.at
        scheduler.bury = self._bury

    async def run(self) -> Result:
        structlog.configure(processors=[_drop])
        gc.collect()
        gc.freeze()
        await self.server.empty()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # the calls of the dead end unheard
        self._upstream()
        for _ in range(2):
            self.start_controller()
        self.faults.plan()
        self._spawn(self._operate())
        while not self.checker.violations and not self._finished():
            if self.scheduler.time > MOST_SECONDS:
                self.checker.fail(f"I10: not finished: {list(self._what_is_left())}")
            if not await self.scheduler.step():
                self.checker.fail(f"I10: nobody can move: {list(self._what_is_left())}")
        if not self.checker.violations:
            self.checker.at_the_end()
        await self._stop()
        return Result(
            self.seed,
            self.scheduler.steps,
            self.scheduler.time,
            self.faults.fired,
            self.checker.violations,
            self.scheduler.log,
            self.covered,
        )

    # -- controllers -------------------------------------------------------------------------------------

    def living(self) -> list[Process]:
        return [process for process in self.processes if not process.dead]

    def start_controller(self) -> None:
        if len(self.living()) >= 3:
            return
        process = Process(f"c{len(self.processes)}", skew_seconds=self.scheduler.dice.uniform(-2, 2))
        self.processes.append(process)
        self.scheduler.note(f"{process.name} starts, clock {process.skew_seconds:+.1f} s")
        context = self._context(process)
        for loop in main.loops(context):
            self._spawn(self._keep_running(Actor(process, loop.name), loop, context))

    def _context(self, process: Process) -> Context:
        return Context(
            settings=self.settings,
            store=self.store,
            clock=SimClock(self.scheduler, process),
            entropy=SimEntropy(self.scheduler),
            batch=self.batch,
            objects=self.objects,
            inboxes=Inboxes(requests=self.incoming, reports=self.reports, batch_events=self.events),
            outboxes=Outboxes(requests=self.incoming, rejects=self.rejects, status=self.status),
            recorder=self.recorder,
            holder=process.name,
            policy=self.settings.policy(),
        )

    async def _keep_running(self, actor: Actor, loop: Loop, context: Context) -> None:
        """As `controller.loops.runner` does it, but on the virtual clock; a bug ends the seed."""
        ACTOR.set(actor)
        while True:
            actor.step_began = self.scheduler.time
            actor.tasks.clear()
            actor.task_number()
            try:
                outcome = await loop.step(context.clock.now())
            except (Fenced, PortError) as error:
                self.scheduler.note(f"{actor} {type(error).__name__}: {error}")
                outcome = Outcome.IDLE
            except Crashed:
                return
            except Exception as error:
                if actor.process.dead:
                    return
                self.checker.fail(f"bug in {actor}: {type(error).__name__}: {error}")
                raise
            if outcome is Outcome.IDLE:
                try:
                    await self.scheduler.sleep(self.scheduler.dice.uniform(0.5, 1) * IDLE_SECONDS)
                except Crashed:
                    return

    async def _bury(self, process: Process) -> None:
        await self.database.kill(process)
        if len(self.living()) < 2:
            self.scheduler.later(self.scheduler.dice.uniform(1, 10), self.start_controller)

    def calm(self) -> None:
        """The end of all faults."""
        self.world.habits = Habits(poison=self.world.habits.poison)
        self.batch.capacity.update(CAPACITY)
        for queue in (self.incoming, self.reports, self.events, self.status, self.rejects):
            queue.dropped, queue.doubled, queue.latest_seconds = 0.0, 0.0, 3.0
        for process in self.living():
            process.frozen_until = 0.0
        while len(self.living()) < 2:
            self.start_controller()

    def _spawn(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _stop(self) -> None:
        for process in [*self.living(), self._operator.process]:
            self.scheduler.crash(process)
            await self.database.kill(process)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- people --------------------------------------------------------------------------------------------

    def _upstream(self) -> None:
        """Three requests, some of them sent twice, one perhaps cancelled, and things that nobody can take."""
        dice, send = self.scheduler.dice, self.incoming.put
        for number, shards in enumerate(SHARDS):
            key = f"request-{number}"
            multi_node = number == 2 and dice.random() < 0.5
            payload = RequestSubmit.model_validate(
                {
                    "idempotency_key": key,
                    "tenant": "stock",
                    "source": {"kind": "prefix", "bucket": "photos", "prefix": f"{key}/"},
                    "model": "tiny@1",
                    "output": {"uri": "s3://embeddings/out/"},
                    "index": key if number != 1 else None,
                    "tolerance": 1.0,
                    "mode": "multi_node" if multi_node else "array",
                    "queues": ["ondemand"] if multi_node else None,
                    "priority": dice.randint(0, 2),
                }
            )
            body = encode(MessageType.REQUEST_SUBMIT, payload, event_id=f"e{number}", source="upstream")
            self.world.shards[request_id("stock", key)] = shards
            sent_at = dice.uniform(0, 20)
            self.scheduler.later(sent_at, lambda body=body: send(body))
            if dice.random() < 0.5:
                self.scheduler.later(sent_at + dice.uniform(0, 200), lambda body=body: send(body))
        poisoned = request_id("stock", "request-0")
        if dice.random() < 0.5:
            place = (poisoned, dice.randrange(SHARDS[0]), dice.randrange(SHARD_ASSETS))
            self.world.habits.poison = frozenset({place})
        if dice.random() < 0.5:
            cancel = RequestCancel(tenant="stock", idempotency_key=f"request-{dice.randrange(len(SHARDS))}")
            body = encode(MessageType.REQUEST_CANCEL, cancel, event_id="cancel", source="upstream")
            self.scheduler.later(dice.uniform(5, 120), lambda: send(body))
        self.scheduler.later(dice.uniform(0, 100), lambda: send("no JSON"))

    async def _operate(self) -> None:
        """Whoever is on call looks every now and then, and mostly requeues what failed."""
        ACTOR.set(self._operator)
        while True:
            await self.scheduler.sleep(15.0)
            for request in list(self.checker.requests.values()):
                if self._ordered(request.id):
                    continue
                for kind in self._orders_for(request):
                    order = Operation(
                        id=SimEntropy(self.scheduler).new_id("o"),
                        kind=kind,
                        request_id=request.id,
                        selector={},
                        actor="on-call",
                        reason="what failed",
                        created_at=self.scheduler.now(),
                    )
                    async with self.store.transaction() as tx:
                        await tx.operations.insert(order)

    def _orders_for(self, request: Request) -> list[OperationKind]:
        """One order, or two by people who do not know of each other; some requeue while the rest still runs."""
        dice = self.scheduler.dice
        if request.state is RequestState.ATTENTION:
            return dice.choices(list(ORDERS), list(ORDERS.values()), k=2 if dice.random() < 0.3 else 1)
        failed = any(
            shard.state is ShardState.FAILED for shard in self.checker.shards.values() if shard.request_id == request.id
        )
        if request.state is RequestState.RUNNING and failed and dice.random() < 0.3:
            return [OperationKind.REQUEUE_SHARDS]
        if request.state is RequestState.FAILED and request.id not in self._asked and dice.random() < 0.5:
            self._asked.add(request.id)
            return [OperationKind.REQUEUE_SHARDS]
        return []

    def _ordered(self, request_id: str) -> bool:
        return any(o.request_id == request_id and o.state == "pending" for o in self.checker.operations.values())

    # -- the end ---------------------------------------------------------------------------------------------

    def _finished(self) -> bool:
        if self.scheduler.time < END_SECONDS or len(self.checker.requests) < len(SHARDS):
            return False
        return not any(self._what_is_left())

    def _what_is_left(self) -> Iterator[str]:
        checker = self.checker
        for r in checker.requests.values():
            if r.state not in REQUEST_TERMINAL:
                yield f"{r.id} {r.state}: {r.reason}"
        yield from (f"{a.id} {a.state}" for a in checker.attempts.values() if a.state is not AttemptState.ENDED)
        yield from (f"job {j.id} {j.state}" for j in checker.jobs.values() if j.state is not JobState.CLOSED)
        yield from (f"{c.id} runs" for c in self.batch.children() if c.alive)
        yield from (f"request message {m.body[:40]}" for m in self.incoming.messages)

    def _moved(self, what: str, before: str, after: str) -> None:
        now = self.scheduler.time
        for kind, at in self.faults.last_fired.items():
            if now - at <= COVERED_SECONDS:
                self.covered[kind, what, before, after] += 1

    def _start_worker(self, child: Child) -> Worker:
        return start(self.world, child)


def _drop(_logger: object, _name: str, _event: object) -> dict[str, object]:
    raise structlog.DropEvent
