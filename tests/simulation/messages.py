"""SQS as inboxes and outboxes: at least once, in no order, late, and again when the visibility ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.ports import Delivery, Unavailable
from tests.simulation.scheduler import Scheduler

VISIBILITY_SECONDS = 30.0
ROUND = 10


@dataclass(eq=False)
class Message:
    body: str
    visible_at: float
    receipt: str = ""
    receives: int = 0


class Queue:
    """One standard queue. `delivered` is asked at each delete whether the message's work is really done."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []
        self.sent: list[str] = []
        self.before_delete: Callable[[str], None] = lambda _body: None
        #: Chance that a message comes twice, and that it is lost (never for requests).
        self.doubled = 0.1
        self.dropped = 0.0
        self.latest_seconds = 3.0
        self._scheduler = scheduler
        self._waiters: list[asyncio.Future[None]] = []
        self._receipts = 0

    def put(self, body: str) -> None:
        """What anybody outside of the controllers sends."""
        dice = self._scheduler.dice
        self.sent.append(body)
        if dice.random() < self.dropped:
            self._scheduler.note(f"sqs {self.name}: lost #{len(self.sent)}")
            return
        for _ in range(2 if dice.random() < self.doubled else 1):
            delay = dice.uniform(0, self.latest_seconds) * (10 if dice.random() < 0.05 else 1)
            self.messages.append(Message(body, self._scheduler.time + delay))
            self._scheduler.later(delay, self._wake)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- Inbox ---------------------------------------------------------------------------------------

    async def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        taken = await self._take(limit)
        if not taken and wait_seconds:
            await self._scheduler.sleep(wait_seconds, self._waiters)
            taken = await self._take(limit)
        return taken

    async def _take(self, limit: int) -> Sequence[Delivery]:
        await self._gate("receive")
        now = self._scheduler.time
        visible = [message for message in self.messages if message.visible_at <= now]
        self._scheduler.dice.shuffle(visible)
        found = []
        for message in visible[: min(limit, ROUND)]:
            self._receipts += 1
            message.receipt, message.receives = f"{self.name}-{self._receipts}", message.receives + 1
            message.visible_at = now + VISIBILITY_SECONDS
            self._scheduler.later(VISIBILITY_SECONDS, self._wake)
            found.append(Delivery(message.body, message.receipt, message.receives))
        return found

    async def delete(self, deliveries: Sequence[Delivery]) -> None:
        await self._gate("delete")
        for delivery in deliveries:
            self.before_delete(delivery.body)
        receipts = {delivery.receipt for delivery in deliveries}
        self.messages = [message for message in self.messages if message.receipt not in receipts]

    # -- Outbox --------------------------------------------------------------------------------------

    async def send(self, body: str, attributes: object, group: str) -> None:
        await self._gate("send")
        self.put(body)

    async def _gate(self, call: str) -> None:
        if await self._scheduler.gate(f"sqs {self.name}.{call}") is not None:
            raise Unavailable(f"SQS {self.name}: 503")
