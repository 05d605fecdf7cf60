"""Which queue takes what: room, order, fit, quotas, and what goes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from controller.core.backlogs import Lane, give_back, shares
from controller.core.cycle import Situation, plan
from controller.core.decisions import KeepQueue, StartAttempts, StopUnstarted
from controller.core.placement import Choice, Order, PlacementLimits, QueueSpec, place, room
from controller.core.quotas import within_quotas
from controller.core.records import Circuit, QueueState, Waiting
from schema.states import StopIntent
from tests.builders import NOW, ago, load, request, shard

LIMITS = PlacementLimits(
    start_seconds=900,
    reason_dwell_seconds=300,
    cooldown_seconds=600,
    cooldown_max_seconds=7200,
    probe_size=2,
    stall_seconds=300,
)
QUEUES = [
    QueueSpec(name=name, max_live=100, backlog=10, price_usd_per_hour=1.0, multi_node=name == "ondemand")
    for name in ("g6e", "g6", "g5", "ondemand")
]
CLOSED = QueueState(name="g6e")
OPEN = QueueState(name="g6e", circuit=Circuit.OPEN)


def placed(shards: list, rooms: dict[str, int], body: dict | None = None, **wishes: int) -> list[str]:
    of = request(body=body or {})
    return [name for name, _ in place(shards, {"r-1": Choice(queues=QUEUES).of(of)}, rooms, wishes)]


def test_room_keeps_the_backlog_shallow() -> None:
    spec = QUEUES[0]
    assert room(spec, CLOSED, load(queued=4, submitting=1), LIMITS) == 5
    assert room(spec, CLOSED, load(running=98), LIMITS) == 2
    assert room(spec, CLOSED, load(running=100, queued=3), LIMITS) == 0
    assert room(spec, OPEN, load(), LIMITS) == 0
    assert room(spec, replace(CLOSED, circuit=Circuit.HALF_OPEN), load(queued=1), LIMITS) == 1
    assert room(spec, replace(CLOSED, paused=True), load(), LIMITS) == 0


def test_what_runs_in_a_dry_queue_is_followed_by_as_much() -> None:
    """An instance that ends its work and finds nothing goes away, and a dry queue gets no other."""
    assert room(QUEUES[0], OPEN, load(running=4, queued=1), LIMITS) == 5


def test_preferred_first_then_overflow() -> None:
    rooms = {"g6e": 2, "g6": 2, "g5": 9, "ondemand": 9}
    assert placed([shard(i) for i in range(5)], rooms) == ["g6e", "g6e", "g6", "g6", "g5"]


def test_wishes_come_before_the_order() -> None:
    assert placed([shard(i) for i in range(3)], {"g6e": 9, "g6": 9, "g5": 9}, g5=2) == ["g5", "g5", "g6e"]


def test_only_the_queues_the_request_allows() -> None:
    rooms = dict.fromkeys(["g6e", "g6", "g5"], 2)
    assert placed([shard(i) for i in range(3)], rooms, {"queues": ["g5", "g6"]}) == ["g5", "g5", "g6"]


def test_multi_node_only_where_a_definition_for_it_exists() -> None:
    rooms = dict.fromkeys(["g6e", "g6", "g5", "ondemand"], 2)
    assert placed([shard()], rooms, {"mode": "multi_node"}) == ["ondemand"]


def test_a_shard_avoids_a_queue_if_there_is_elsewhere() -> None:
    unlucky = shard(avoid_queue="g6e")
    assert placed([unlucky], {"g6e": 1, "g6": 1}) == ["g6"]
    assert placed([unlucky], {"g6e": 1}) == ["g6e"]


def test_a_model_never_goes_to_a_card_that_is_too_small() -> None:
    sizes = {"g6e": 45776, "g6": 22888, "g5": 22888, "ondemand": None}
    queues = [replace(queue, gpu_memory_mib=sizes[queue.name]) for queue in QUEUES]
    large = Choice(queues=queues, needs_mib={"tiny@1": 40000})
    assert [queue.name for queue in large.of(request())] == ["g6e"]
    assert large.of(request(body={"queues": ["g5", "g6"]})) == []
    assert len(Choice(queues=queues, needs_mib={"other@1": 40000}).of(request())) == 4


def test_orders_by_cost_and_by_speed() -> None:
    prices = {"g6e": 1.861, "g6": 0.8048, "g5": 1.006, "ondemand": 9.0}
    queues = [replace(queue, price_usd_per_hour=prices[queue.name]) for queue in QUEUES]
    speeds = {"tiny@1": {"g6e": 33.0, "g6": 18.5, "g5": 22.0, "ondemand": 34.0}}

    def names(order: Order, dry: frozenset[str] = frozenset(), **more: object) -> list[str]:
        choice = Choice(queues=queues, order=order, **{"speeds": speeds, **more})  # type: ignore[arg-type]
        return [queue.name for queue in choice.of(request(), dry)]

    assert names(Order.SPEED) == ["ondemand", "g6e", "g5", "g6"]
    assert names(Order.COST) == ["g6", "g5", "g6e"]
    assert names(Order.COST, frozenset({"g6e", "g6", "g5"})) == ["g6", "g5", "g6e", "ondemand"]
    assert names(Order.COST, speeds={"tiny@1": {"g6e": 33.0}}) == ["g6e", "g6", "g5", "ondemand"], "not all measured"


def test_the_last_of_the_work_is_shared_so_that_it_ends_together() -> None:
    lanes = [
        Lane(name="g6e", slots=100, seconds=600, waiting=0),
        Lane(name="g6", slots=100, seconds=1200, waiting=0),
        Lane(name="dry", slots=0, seconds=600, waiting=9),
    ]
    few, many = shares(lanes, 50), shares(lanes, 1000)
    assert few == {"g6e": 50, "g6": 0, "dry": 0}, "the slow one would end after the fast one's second turn"
    assert sum(many.values()) == 1000
    ends = [(many["g6e"] / 100 + 1) * 600, (many["g6"] / 100 + 1) * 1200]
    assert abs(ends[0] - ends[1]) < 30


def test_what_goes_back_belongs_to_requests_that_may_go_elsewhere() -> None:
    waiting = [
        Waiting(queue="g6e", request_id="bound", attempts=5),
        Waiting(queue="g6e", request_id="r-1", attempts=5),
        Waiting(queue="g6e", request_id="later", attempts=5),
    ]
    orders = {"bound": QUEUES[:1], "r-1": QUEUES[:2], "later": QUEUES[:3]}
    stops = give_back({"g6e": 12}, {"g6": 6, "g5": 1}, waiting, orders)
    assert [(stop.request_id, stop.attempts) for stop in stops] == [("r-1", 5), ("later", 2)]


def test_a_known_quota_fills_with_the_preferred_queue() -> None:
    loads = {name: load(name) for name in ("g6e", "g6", "g5", "ondemand")}
    rooms = dict.fromkeys(loads, 10)
    first = within_quotas(rooms, QUEUES, loads, {"": 160}, 300, NOW)
    assert first == {"g6e": 40, "g6": 0, "g5": 0, "ondemand": 0}
    full = {**loads, "g6e": load(running=25, queued=15, oldest_queued_at=ago(301))}
    rooms["g6e"] = 0
    assert within_quotas(rooms, QUEUES, full, {"": 160}, 300, NOW)["g6"] == 10, "the first has had its chance"
    used_up = {**full, "g6": load("g6", running=15)}
    assert within_quotas(rooms, QUEUES, used_up, {"": 160}, 300, NOW)["g6"] == 1, "what is about to end is replaced"
    assert within_quotas(rooms, QUEUES, used_up, {}, 300, NOW) == rooms


def situation(**changes: object) -> Situation:
    base: dict[str, object] = {
        "queues": QUEUES,
        "states": {},
        "loads": {},
        "shards": [],
        "requests": {"r-1": request()},
        "limits": LIMITS,
        "array_max": 4,
        "jitter": 0.5,
    }
    return Situation(**{**base, **changes})  # type: ignore[arg-type]


def held(**attempts: int) -> list[Waiting]:
    return [Waiting(queue=queue, request_id="r-1", attempts=count) for queue, count in attempts.items()]


def stops(situation: Situation) -> dict[str, int | None]:
    return {d.queue: d.attempts for d in plan(situation, NOW) if isinstance(d, StopUnstarted)}


def test_cycle_cuts_even_arrays() -> None:
    decisions = plan(situation(shards=[shard(i) for i in range(9)]), NOW)
    sizes = [len(d.shards) for d in decisions if isinstance(d, StartAttempts)]
    assert sizes == [3, 3, 3]
    seen = sorted(s.shard for d in decisions if isinstance(d, StartAttempts) for s in d.shards)
    assert seen == list(range(9))


DRY = {"g6e": load(queued=5, oldest_queued_at=ago(1000))}


def test_a_dry_queue_keeps_a_canary_while_there_is_other_work() -> None:
    decisions = plan(situation(loads=DRY, shards=[shard()], waiting=held(g6e=5), page_full=True), NOW)
    assert [d.state.circuit for d in decisions if isinstance(d, KeepQueue)] == [Circuit.OPEN]
    assert [d.attempts for d in decisions if isinstance(d, StopUnstarted)] == [3]
    assert [d.queue for d in decisions if isinstance(d, StartAttempts)] == ["g6"]


def test_the_canary_goes_too_when_it_is_the_last_of_the_work() -> None:
    assert stops(situation(loads=DRY, waiting=held(g6e=5))) == {"g6e": 5}


def test_the_last_of_the_work_moves_only_from_a_queue_that_had_time_to_start_it() -> None:
    """Seen in the demo: shards a second old went to idle queues while their instances came up."""
    for age, moved in ((1, {}), (299, {}), (300, {"g6e": 6})):
        busy = {"g6e": load(running=2, queued=7, oldest_queued_at=ago(age))}
        assert stops(situation(loads=busy, waiting=held(g6e=7))) == moved, age


def test_a_dry_queue_is_filled_only_by_what_no_other_takes() -> None:
    many = [shard(number) for number in range(40)]
    decisions = plan(situation(loads=DRY, shards=many, waiting=held(g6e=5), page_full=True), NOW)
    began = [(d.queue, s.shard) for d in decisions if isinstance(d, StartAttempts) for s in d.shards]
    assert Counter(queue for queue, _ in began) == {"g6": 10, "g5": 10, "ondemand": 10, "g6e": 5}
    assert min(number for queue, number in began if queue == "g6e") == 30, "the most urgent go where they start"
    assert [d for d in decisions if isinstance(d, StopUnstarted)] == []
    # The end is near: only the canary stays.
    assert stops(situation(loads=DRY, shards=many, waiting=held(g6e=5))) == {"g6e": 3}


def test_a_request_that_has_nothing_else_to_place_does_not_wait_in_a_dry_queue() -> None:
    of = {"r-1": request(), "r-2": request(id="r-2")}
    waiting = [*held(g6e=3), Waiting(queue="g6e", request_id="r-2", attempts=2)]
    seen = situation(loads=DRY, requests=of, shards=[shard(n) for n in range(40)], waiting=waiting, page_full=True)
    assert [(d.request_id, d.attempts) for d in plan(seen, NOW) if isinstance(d, StopUnstarted)] == [("r-2", 2)]


def test_canaries_stay_behind_a_backlog_at_the_end_too() -> None:
    """What is left waits in a busy queue: nobody but the canary can tell that another has capacity again."""
    busy = load("g6", running=10, queued=5, oldest_queued_at=ago(100))
    states = {"g6e": OPEN, **{name: QueueState(name=name, paused=True) for name in ("g5", "ondemand")}}
    assert stops(situation(loads={**DRY, "g6": busy}, states=states, waiting=held(g6e=5, g6=5))) == {"g6e": 3}
    few = replace(busy, queued=1)
    assert stops(situation(loads={**DRY, "g6": few}, states=states, waiting=held(g6e=5, g6=1))) == {"g6e": 5}


def test_nothing_goes_back_while_everything_is_dry() -> None:
    dry = {name: load(name, queued=5, oldest_queued_at=ago(1000)) for name in ("g6e", "g6", "g5", "ondemand")}
    assert stops(situation(loads=dry, waiting=held(g6e=5, g6=5, g5=5, ondemand=5))) == {}


def test_a_known_quota_that_is_dry_waits_in_the_preferred_queue_only() -> None:
    dry = {name: load(name, queued=5, oldest_queued_at=ago(1000)) for name in ("g6e", "g6", "g5", "ondemand")}
    seen = situation(loads=dry, waiting=held(g6e=5, g6=5, g5=5, ondemand=5), quota_vcpus={"": 400})
    assert stops(seen) == {"g6": 3, "g5": 3, "ondemand": 3}


def test_a_paused_queue_gives_back_all() -> None:
    seen = situation(states={"g6e": replace(CLOSED, paused=True)}, loads=DRY, waiting=held(g6e=5))
    assert StopUnstarted(queue="g6e", intent=StopIntent.PAUSE) in plan(seen, NOW)


def test_a_frozen_system_starts_nothing_and_moves_nothing() -> None:
    seen = situation(loads=DRY, shards=[shard()], waiting=held(g6e=5), frozen=True)
    assert [type(d) for d in plan(seen, NOW)] == [KeepQueue]
