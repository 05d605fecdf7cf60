"""The real clock and the real randomness."""

from __future__ import annotations

import re

from controller.clock import SystemClock, SystemEntropy
from controller.ports import Clock, Entropy


async def test_the_clock_is_aware_and_moves_forward() -> None:
    clock: Clock = SystemClock()
    first, mark = clock.now(), clock.monotonic()
    await clock.sleep(-1)
    await clock.sleep(0.001)
    assert clock.now() >= first
    assert first.utcoffset() is not None
    assert clock.monotonic() > mark


def test_ids_and_tokens_have_their_form_and_never_repeat() -> None:
    entropy: Entropy = SystemEntropy()
    ids = {entropy.new_id("j") for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"j-[0-9a-f]{20}", name) for name in ids)
    assert len({entropy.token() for _ in range(1000)}) == 1000
    assert all(0 <= entropy.uniform() < 1 for _ in range(1000))
