"""What the settings say of queues with several families."""

from __future__ import annotations

import pytest

from controller.settings import Family, GpuQueue


@pytest.mark.parametrize(
    ("own", "families", "smallest"),
    [
        (None, [], None),
        (45776, [], 45776),
        (None, [45776, 22888], 22888),
        (45776, [None, 22888], 22888),
        (22888, [None, 45776], 22888),
        (None, [None, 45776], None),
    ],
)
def test_memory_is_that_of_the_smallest_family(own: int | None, families: list[int | None], smallest: int) -> None:
    environments = {
        f"ce-{i}": Family(gpu_memory_mib=size, price_usd_per_hour=1.0 + i) for i, size in enumerate(families)
    }
    queue = GpuQueue(name="q", job_definition="d:1", gpu_memory_mib=own, families=environments)
    assert queue.smallest_gpu_memory_mib() == smallest
