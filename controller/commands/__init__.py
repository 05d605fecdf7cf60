"""The commands of `reembed`, one file a noun. They talk to the REST API; only `db`, `doctor` and `controller` do not."""
