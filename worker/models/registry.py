"""`name@version` → plug-in. The only module that looks for plug-ins.

Models of this package are known without being installed; others register an entry point of the group
`reembed.models` named after the model. Fails with `UnknownModel`, whose text lists what could be had instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from worker.models.plugin import ModelPlugin

GROUP = "reembed.models"
BUILT_IN = (
    EntryPoint("efficientnet-lite0", "worker.models.efficientnet_lite0:plugin", GROUP),
    EntryPoint("efficientnet-lite0-random", "worker.models.efficientnet_lite0:random_weights", GROUP),
    EntryPoint("tiny", "worker.models.tiny:plugin", GROUP),
)


class UnknownModel(LookupError):
    """No such model on this image, or a plug-in that cannot be imported."""


def find(model: str, points: Iterable[EntryPoint] | None = None) -> ModelPlugin:
    """The plug-in of `name@version`. An entry point may be named `name`, or `name@version` where there are several."""
    name, separator, _version = model.partition("@")
    if not separator:
        raise UnknownModel(f"{model!r} has no version; write name@version, such as {name}@1")
    known = list(dict.fromkeys([*BUILT_IN, *(entry_points(group=GROUP) if points is None else points)]))
    loaded = [_load(point) for point in known if point.name in (name, model)]
    matching = list({id(plugin): plugin for plugin in loaded if plugin.model == model}.values())
    if len(matching) > 1:
        raise UnknownModel(f"{model!r} is registered twice with different plug-ins; uninstall one")
    if not matching:
        others = [plugin.model for plugin in loaded] or sorted({point.name for point in known})
        raise UnknownModel(f"no model {model!r} on this image; it has {', '.join(others)}")
    return matching[0]


def _load(point: EntryPoint) -> ModelPlugin:
    try:
        plugin = point.load()
    except Exception as error:
        raise UnknownModel(f"plug-in {point.value} of model {point.name} cannot be imported: {error}") from error
    if not isinstance(plugin, ModelPlugin):
        raise UnknownModel(f"plug-in {point.value} is a {type(plugin).__name__}, not a ModelPlugin")
    return plugin
