"""Models as plug-ins: the shape of one, the registry, and the ones that come with the package."""
