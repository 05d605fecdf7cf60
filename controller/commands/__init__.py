"""The commands of `reembed`, one file a noun. All talk to the REST API, but for `db`, `doctor` and `controller`."""
