"""`reembed local demo`: the main job on real pictures, on this machine, with figures that can be checked."""
