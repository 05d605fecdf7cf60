"""docs/metrics.md lists what the controller exports. `python -m tests.tidy.test_metrics_page` writes it anew.

The list is made from a scrape of a leader with a figure under every name, so it is what Prometheus sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.core.records import TotalKey
from controller.metrics import COUNTERS, DURATIONS, TOTALS, Metrics
from tests.generated import filled, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
#: Labels of Prometheus' own, which tell the buckets of a histogram apart.
_BUCKET = "le"


def scraped() -> list[Metric]:
    """Every metric of a leader that has counted something everywhere."""
    metrics = Metrics(version="1")
    for name, counted in COUNTERS.items():
        metrics.count(name, **dict.fromkeys(counted.labels, "x"))
    for name, (_, _, label) in DURATIONS.items():
        metrics.count(name, **{label: "x"})
    totals = {
        TotalKey(name=name, model="m", queue="q", label="x" if label else ""): 1.0
        for name, (_, _, label) in TOTALS.items()
    }
    metrics.publish({}, totals)
    return list(text_string_to_metric_families(metrics.exposition().decode()))


def rows() -> Iterator[tuple[str, str, str, str]]:
    for metric in sorted(scraped(), key=lambda metric: metric.name):
        if metric.name.endswith("_created"):
            continue
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        labels = sorted({label for sample in metric.samples for label in sample.labels} - {_BUCKET})
        yield f"`{name}`", metric.type, ", ".join(f"`{label}`" for label in labels), metric.documentation


def parts() -> dict[str, str]:
    return {"metrics": table(("metric", "type", "labels", "meaning"), rows())}


def test_the_page_is_what_is_scraped() -> None:
    page = PAGE.read_text()
    assert page == filled(page, parts()), "run python -m tests.tidy.test_metrics_page"


def test_the_scrape_has_every_metric_of_the_tables() -> None:
    listed = parts()["metrics"]
    names = [*(f"{name}_total" for name in COUNTERS), *(name for name, _, _ in DURATIONS.values())]
    names += [f"{name}_total" for name, _, _ in TOTALS.values()]
    assert [name for name in names if f"`reembed_{name}`" not in listed] == []


def test_queries_of_the_page_name_metrics_that_exist() -> None:
    page = PAGE.read_text()
    listed = set(re.findall(r"`(reembed_\w+)`", parts()["metrics"]))
    queries = "\n".join(re.findall(r"```promql\n(.*?)```", page, re.DOTALL))
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"reembed_\w+", queries)}
    assert named
    assert named <= listed


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), parts()))
