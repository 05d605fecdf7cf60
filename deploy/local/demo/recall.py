"""How well the index finds: held-out pictures against it, and against what weights without training would find.

A query is a hit if one of its five nearest assets comes from its own photo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from deploy.local.photos import NEAREST, DemoSet
from worker.index.search import Hit, nearest
from worker.query import embed_pictures

PICTURES_AT_ONCE = 64


def search(url: str, alias: str, model: str, pictures: DemoSet) -> list[list[Hit]]:
    """The nearest assets of each query in the index, nearest first."""
    vectors = embed_pictures(model, [query.jpeg for query in pictures.queries])
    return [nearest(url, alias, vector.tolist(), NEAREST) for vector in vectors]


def share_of_hits(pictures: DemoSet, found: Sequence[Sequence[str]]) -> float:
    """`found` holds the nearest keys of each query; 0 without queries."""
    hits = sum(pictures.is_hit(query, keys) for query, keys in zip(pictures.queries, found, strict=True))
    return hits / max(1, len(pictures.queries))


def recall_in_memory(
    model: str, pictures: DemoSet, bodies: Mapping[str, bytes], go_on: Callable[[], None] = lambda: None
) -> float:
    """The same by brute force: the share of hits that a model reaches over these files, no index needed. It takes a
    while; `go_on` is called now and then, and what it raises ends it."""
    keys = list(bodies)
    runs = []
    for start in range(0, len(keys), PICTURES_AT_ONCE):
        go_on()
        runs.append(embed_pictures(model, [bodies[key] for key in keys[start : start + PICTURES_AT_ONCE]]))
    assets = np.concatenate(runs)
    queries = embed_pictures(model, [query.jpeg for query in pictures.queries])
    order = np.argsort(-(queries @ assets.T), axis=1)[:, :NEAREST]
    return share_of_hits(pictures, [[keys[position] for position in row] for row in order])
