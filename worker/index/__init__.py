"""The index job: committed shards become rows of a search index; at the end the manifest and the alias change.

`job` is the entry; `committed` reads what markers name, `audit` checks it against the plan, `outcome` writes the
manifest and the failures, `writer` says what an index must do and `pgvector` does it with the statements of `sql`.
`search` is the reading side. Only this package imports psycopg.
"""
