"""What the settings say of queues with several families."""

from __future__ import annotations

import pytest

from controller.settings import Family, GpuQueue, Placement, Settings
from tests.builders import settings


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


def test_admission_knows_which_queues_have_the_memory_for_a_model() -> None:
    queues = [
        GpuQueue(name=name, job_definition="d:1", gpu_memory_mib=size)
        for name, size in {"g6e": 45776, "g6": 22888}.items()
    ]
    placement = Placement(model_gpu_memory_mib={"large@1": 40000, "huge@1": 90000})
    policy = Settings.model_validate(settings() | {"gpu_queues": queues, "placement": placement}).policy()
    assert policy.holding == {"large@1": {"g6e"}, "huge@1": frozenset()}
