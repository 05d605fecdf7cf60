"""What goes wrong in a seed: when, of which kind, for how long.

Two ways to go wrong: a fault armed at gates (the next calls that match fail in a given way, or the process dies there),
and a disturbance of a model for a while. Everything is drawn when the seed starts and ends at `END_SECONDS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.database import AFTER, BEFORE
from tests.simulation.scheduler import CRASH, Actor, Process
from tests.simulation.settings import CAPACITY

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

#: From when on there are faults, when the first jobs are likely to run, and when all faults stop.
BEGIN_SECONDS, BUSY_SECONDS, END_SECONDS = 2.0, 40.0, 150.0
FAULTS = (14, 22)
#: The fault after which a process sleeps: the call is made, and what follows it comes late.
PAUSE = "pause"
HOST = "Host EC2 (instance i-0abc) terminated."


@dataclass
class Armed:
    """The next `left` gates that match get `fault`, each with `chance`."""

    kind: str
    matches: Callable[[Actor, str], bool]
    fault: str
    left: int
    chance: float = 1.0


@dataclass
class Faults:
    simulation: Simulation
    fired: Counter[str] = field(default_factory=Counter)
    last_fired: dict[str, float] = field(default_factory=dict)
    armed: list[Armed] = field(default_factory=list)

    def plan(self) -> None:
        """Draw the seed's faults and set their times."""
        dice, scheduler = self.simulation.scheduler.dice, self.simulation.scheduler
        kinds = sorted(KINDS)
        chosen = dice.sample(kinds, min(len(kinds), dice.randint(*FAULTS)))
        chosen += ["controller crash"] * dice.randint(1, 4)
        for kind in chosen:
            anywhen = (BEGIN_SECONDS if dice.random() < 0.25 else BUSY_SECONDS, END_SECONDS * 0.9)
            since, until = EARLY.get(kind, anywhen)
            scheduler.later(dice.uniform(since, until), lambda kind=kind: self._begin(kind))
        scheduler.later(END_SECONDS, self._end)

    def fire(self, kind: str) -> None:
        self.fired[kind] += 1
        self.last_fired[kind] = self.simulation.scheduler.time

    def at(self, actor: Actor, point: str) -> str | None:
        """What to do wrong at a gate."""
        if actor.loop == "operator":
            return None
        for armed in self.armed:
            if (
                armed.left > 0
                and armed.matches(actor, point)
                and self.simulation.scheduler.dice.random() < armed.chance
            ):
                armed.left -= 1
                self.fire(armed.kind)
                if armed.fault != PAUSE:
                    return armed.fault
                self.pause(actor.process)
        return None

    def arm(self, kind: str, fault: str, prefix: str, *, left: int = 1, chance: float = 1.0) -> None:
        self.armed.append(Armed(kind, lambda _actor, point: point.startswith(prefix), fault, left, chance))

    def pause(self, process: Process) -> None:
        process.frozen_until = self.simulation.scheduler.time + self.simulation.scheduler.dice.uniform(10, 60)

    def _begin(self, kind: str) -> None:
        self.simulation.scheduler.note(f"FAULT {kind}")
        KINDS[kind](self)

    def _end(self) -> None:
        self.armed.clear()
        self.simulation.calm()
        self.simulation.scheduler.note("FAULTS END")


def _crash(faults: Faults) -> None:
    faults.arm("controller crash", CRASH, "", chance=0.01)


def _crash_in_submit(faults: Faults) -> None:
    faults.arm("controller crash", CRASH, "batch submit")


def _crash_in_plan(faults: Faults) -> None:
    faults.armed.append(Armed("controller crash", lambda actor, _point: actor.loop == "plan", CRASH, 2, 0.15))


def _crash_at_commit(faults: Faults) -> None:
    faults.arm("controller crash", CRASH, "sql commit", chance=0.2)


def _freeze(faults: Faults) -> None:
    simulation = faults.simulation
    living = simulation.living()
    if not living:
        return
    faults.pause(simulation.scheduler.dice.choice(living))
    faults.fire("controller paused")


def _freeze_dispatch(faults: Faults) -> None:
    """Whoever leads sleeps in the middle of it, and wakes when another may lead."""
    faults.armed.append(Armed("leader paused", lambda actor, _point: actor.loop == "dispatch", PAUSE, 2, 0.1))


def _another(faults: Faults) -> None:
    faults.simulation.start_controller()
    faults.fire("another controller")


def _postpone(faults: Faults) -> None:
    def matches(actor: Actor, point: str) -> bool:
        return actor.loop == "intake" and point.startswith("sql ")

    faults.armed.append(Armed("requests postponed", matches, BEFORE, left=6, chance=0.3))


def _gates(kind: str, fault: str, prefix: str, left: int, chance: float = 1.0) -> Callable[[Faults], None]:
    return lambda faults: faults.arm(kind, fault, prefix, left=left, chance=chance)


def _spot_storm(faults: Faults) -> None:
    simulation = faults.simulation
    for child in simulation.batch.running():
        if child.job.spec.queue != "cpu" and simulation.scheduler.dice.random() < 0.7:
            simulation.batch.kill(child, HOST, None)
            faults.fire("spot storm")


def _cut_off(faults: Faults) -> None:
    simulation = faults.simulation
    for child in simulation.batch.running():
        if child.job.spec.queue != "cpu" and simulation.scheduler.dice.random() < 0.5:
            simulation.batch.cut_off(child, HOST)
            faults.fire("hosts cut off")


def _dry(faults: Faults) -> None:
    simulation, capacity = faults.simulation, faults.simulation.batch.capacity
    dice = simulation.scheduler.dice
    queue = dice.choice(["g6e", "g6e", "g6", "g6", "g5", "ondemand"])
    capacity[queue] = 0
    faults.fire("dry spell")
    simulation.scheduler.later(dice.uniform(40, 160), lambda: capacity.__setitem__(queue, CAPACITY[queue]))


def _deafen(faults: Faults) -> None:
    """Nothing is heard of anything that runs, for longer than it takes to give it up."""
    simulation = faults.simulation
    refused = Armed("nothing heard", lambda _actor, point: point.startswith("batch describe"), "500", left=10_000)
    faults.armed.append(refused)
    simulation.events.dropped = simulation.reports.dropped = 1.0

    def end() -> None:
        refused.left = 0
        simulation.events.dropped = simulation.reports.dropped = 0.0

    simulation.scheduler.later(simulation.scheduler.dice.uniform(90, 130), end)


def _kill_one(faults: Faults) -> None:
    running = faults.simulation.batch.running()
    if running:
        faults.simulation.batch.kill(
            faults.simulation.scheduler.dice.choice(running), "Essential container exited", 137
        )
        faults.fire("container killed")


def _for_a_while(
    kind: str, set_to: Callable[[Simulation], Callable[[], None]], seconds: float = 60.0
) -> Callable[[Faults], None]:
    """`set_to` disturbs, and gives what undoes it."""

    def begin(faults: Faults) -> None:
        undo = set_to(faults.simulation)
        faults.fire(kind)
        faults.simulation.scheduler.later(seconds, undo)

    return begin


def _attribute(
    owner: Callable[[Simulation], object], name: str, value: float
) -> Callable[[Simulation], Callable[[], None]]:
    def disturb(simulation: Simulation) -> Callable[[], None]:
        target = owner(simulation)
        before = getattr(target, name)
        setattr(target, name, value)
        return lambda: setattr(target, name, before)

    return disturb


def _habit(name: str, share: float) -> Callable[[Faults], None]:
    """The kind is counted when a container really does it."""
    disturb = _attribute(lambda simulation: simulation.world.habits, name, share)

    def begin(faults: Faults) -> None:
        faults.simulation.scheduler.later(90.0, disturb(faults.simulation))

    return begin


def _fail_in_every_way(faults: Faults) -> None:
    """So that one shard's failures are of several kinds."""
    for name in ("crash", "out_of_memory", "bad_marker"):
        _habit(name, 0.25)(faults)


def _queue(kind: str, queue: str, name: str, value: float) -> Callable[[Faults], None]:
    return _for_a_while(kind, _attribute(lambda simulation: getattr(simulation, queue), name, value))


#: What concerns requests as they come in, or jobs before they start: kind → from when to when it begins.
EARLY = {
    "requests postponed": (0.0, BEGIN_SECONDS),
    "controller crash in a plan": (0.0, BUSY_SECONDS),
    "nothing heard": (15.0, 45.0),
    "dry spell": (0.0, 60.0),
    "another dry spell": (0.0, 60.0),
}
KINDS: dict[str, Callable[[Faults], None]] = {
    "controller crash": _crash,
    "controller crash in SubmitJob": _crash_in_submit,
    "controller crash at a commit": _crash_at_commit,
    "controller crash in a plan": _crash_in_plan,
    "nothing heard": _deafen,
    "controller paused": _freeze,
    "leader paused": _freeze_dispatch,
    "another controller": _another,
    "SubmitJob answer lost": _gates("SubmitJob answer lost", "answer lost", "batch submit", 2),
    "SubmitJob not sent": _gates("SubmitJob not sent", "not sent", "batch submit", 2),
    "Batch 429": _gates("Batch 429", "429", "batch ", 12),
    "Batch 500": _gates("Batch 500", "500", "batch ", 8),
    "S3 503": _gates("S3 503", "503", "s3 ", 10),
    "S3 500": _gates("S3 500", "500", "s3 ", 5),
    "SQS 503": _gates("SQS 503", "503", "sqs ", 12),
    "Postgres connection lost": _gates("Postgres connection lost", BEFORE, "sql ", 8, 0.3),
    "requests postponed": _postpone,
    "commit answer lost": _gates("commit answer lost", AFTER, "sql commit", 4, 0.3),
    "ListJobs lags": _for_a_while("ListJobs lags", _attribute(lambda s: s.batch, "list_lag_seconds", 90.0)),
    "jobs age out": _for_a_while("jobs age out", _attribute(lambda s: s.batch, "oblivion_seconds", 0.5)),
    "spot storm": _spot_storm,
    "hosts cut off": _cut_off,
    "dry spell": _dry,
    "another dry spell": _dry,
    "container killed": _kill_one,
    "reports lost": _queue("reports lost", "reports", "dropped", 0.6),
    "reports late": _queue("reports late", "reports", "latest_seconds", 60.0),
    "reports doubled": _queue("reports doubled", "reports", "doubled", 0.7),
    "events lost": _queue("events lost", "events", "dropped", 0.9),
    "events late": _queue("events late", "events", "latest_seconds", 60.0),
    "containers crash": _habit("crash", 0.2),
    "containers are throttled": _habit("incomplete", 0.2),
    "containers out of memory": _habit("out_of_memory", 0.15),
    "containers fail in every way": _fail_in_every_way,
    "hosts sick": _habit("host_sick", 0.3),
    "containers end without a word": _habit("silent_end", 0.4),
    "forged reports": _habit("forged", 0.2),
    "bad markers": _habit("bad_marker", 0.1),
    "S3 refuses commits": _habit("commit_fault", 0.5),
}
