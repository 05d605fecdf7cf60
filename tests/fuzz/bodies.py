"""Message bodies that nobody should send, from a seed: random text, cut off, huge, of wrong types, of old versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

#: What stands in for any value of a good message.
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    10**40,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "\0",
    "a\0b",
    "\ud800",
    "’é🜁",
    "../..",
    "s3://photos/",
    "x" * 5000,
    [],
    {},
    [[[[]]]],
    [2**40],
    {"": None},
    {"a\0": "b"},
    {"1": "\0"},
    {"99999999999": "d"},
)
#: Characters that SQS refuses.
_UNSENDABLE = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
OLD: tuple[dict[str, Any], ...] = (
    {"specversion": "0.3"},
    {"specversion": 1.0},
    {"type": "request.submit.v0"},
    {"type": "worker.report.v0"},
    {"detail-type": "Batch Job State Change v2"},
    {"version": "-1", "source": "aws.ecs"},
    {"data": None},
    {"detail": None},
)


class Bodies:
    """`good` makes the body of a good message; whatever else comes is made of it and of chance."""

    def __init__(self, seed: int, good: Callable[[], str], *, sendable: bool = False) -> None:
        self._dice = Random(seed)
        self._good = good
        self._earlier: list[str] = []
        self._sendable = sendable

    def bad(self) -> str:
        """One more body; now and then it is still a good one."""
        makers: Sequence[Callable[[], str]] = (
            self._text,
            self._cut,
            self._changed,
            self._changed,
            self._changed,
            self._old,
            self._again,
            self._huge,
        )
        weights = (6, 6, 10, 10, 10, 5, 5, 0.2)
        body = self._dice.choices(makers, weights)[0]()
        if self._sendable:
            body = _UNSENDABLE.sub("?", body)[: 200 * 1024]
        self._earlier = [*self._earlier[-99:], body]
        return body or " "

    def _text(self) -> str:
        size = self._dice.choice((0, 1, 5, 50, 500))
        if self._dice.random() < 0.5:
            return self._dice.randbytes(size).decode("latin-1")
        return "".join(chr(self._dice.randrange(0x110000)) for _ in range(size))

    def _cut(self) -> str:
        body = self._good()
        return body[: self._dice.randrange(len(body))]

    def _changed(self) -> str:
        document = json.loads(self._good())
        for _ in range(self._dice.choice((1, 1, 1, 2, 5))):
            document = self._replace(document)
        return json.dumps(document)

    def _replace(self, value: Any) -> Any:
        """The value with something in it replaced, left out or added."""
        if isinstance(value, dict) and value and self._dice.random() < 0.9:
            # Rather inside than outside: an envelope that is wrong hides everything that it holds.
            weights = [30 if isinstance(inner, dict) else 1 for inner in value.values()]
            [key] = self._dice.choices(list(value), weights)
            choice = self._dice.random()
            if choice < 0.1:
                return {name: inner for name, inner in value.items() if name != key}
            if choice < 0.15:
                return value | {f"new-{key}": self._dice.choice(VALUES)}
            return value | {key: self._replace(value[key])}
        if isinstance(value, list) and value and self._dice.random() < 0.7:
            place = self._dice.randrange(len(value))
            return [*value[:place], self._replace(value[place]), *value[place + 1 :]]
        return self._dice.choice(VALUES)

    def _old(self) -> str:
        return json.dumps(json.loads(self._good()) | self._dice.choice(OLD))

    def _again(self) -> str:
        return self._dice.choice(self._earlier) if self._earlier else self._good()

    def _huge(self) -> str:
        return self._dice.choice(
            (
                "[" * 100_000,
                '{"a":' * 50_000,
                "9" * 200_000,
                json.dumps({"data": "x" * 900_000}),
                self._good()[:-1] + ', "more": "' + "x" * 300_000 + '"}',
            )
        )
