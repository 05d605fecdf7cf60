"""Every statement of the index database. `{table}` and `{index}` are identifiers, the rest are parameters.

One table a (dataset, model, preprocessing) holds the vectors; three small tables say what is loaded (ledger) and
what search uses (alias, and the history of its changes). Keys are bytea: S3 keys may hold what text may not.
"""

from __future__ import annotations

# One at a time: CREATE … IF NOT EXISTS of two sessions at once fails in the one that comes second.
LOCK_DEFINITIONS = "SELECT pg_advisory_xact_lock(hashtext('reembed definitions'))"

# Needs a superuser where the extension is not there yet; a no-op where it is.
CREATE_EXTENSION = "CREATE EXTENSION IF NOT EXISTS vector"

# Which shards an index table holds, by the digest of the commit marker that decided the rows.
CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS reembed_ledger (
    index_table text NOT NULL,
    shard integer NOT NULL,
    marker_digest text NOT NULL,
    rows bigint NOT NULL,
    loaded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (index_table, shard)
)"""

# What search uses, and the table that it used before: rolling back is the same change.
CREATE_ALIASES = """
CREATE TABLE IF NOT EXISTS reembed_aliases (
    alias text PRIMARY KEY,
    index_table text NOT NULL,
    request_id text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    previous text
)"""

# Every change of an alias, for ever.
CREATE_ALIAS_CHANGES = """
CREATE TABLE IF NOT EXISTS reembed_alias_changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alias text NOT NULL,
    index_table text NOT NULL,
    previous text,
    request_id text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now()
)"""

# The vectors. The primary key makes a repeated load harmless, and finds a shard's rows by its range of keys.
CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS {table} (
    key bytea NOT NULL,
    part integer NOT NULL,
    shard integer NOT NULL,
    embedding {type} NOT NULL,
    PRIMARY KEY (key, part)
)"""

# The type of a table's vectors, such as halfvec(1280); no row where the table does not exist.
VECTOR_TYPE = """
SELECT format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attname = 'embedding' AND NOT attisdropped"""

# Two loads of one shard take turns; the second then finds the ledger as it wants it.
LOCK_SHARD = "SELECT pg_advisory_xact_lock(hashtext(%(table)s), %(shard)s)"

# The marker that a shard's rows come from.
LEDGER_OF_SHARD = "SELECT marker_digest FROM reembed_ledger WHERE index_table = %(table)s AND shard = %(shard)s"

# The whole ledger of a table.
LEDGER = "SELECT shard, marker_digest FROM reembed_ledger WHERE index_table = %(table)s"

# Where COPY puts the rows of one shard before they are merged.
CREATE_INCOMING = "CREATE TEMPORARY TABLE incoming (key bytea, part integer, embedding {type}) ON COMMIT DROP"

COPY_INCOMING = "COPY incoming (key, part, embedding) FROM STDIN (FORMAT BINARY)"

# Rows of an earlier commit of the shard. The range of keys spares reading the whole table.
DELETE_SHARD_IN_RANGE = "DELETE FROM {table} WHERE key BETWEEN %(first)s AND %(last)s AND shard = %(shard)s"

# Rows of a shard that is no longer part of the output. Rare, so it may read the whole table.
DELETE_SHARD = "DELETE FROM {table} WHERE shard = %(shard)s"

MERGE_INCOMING = """
INSERT INTO {table} (key, part, shard, embedding)
SELECT key, part, %(shard)s, embedding FROM incoming
ON CONFLICT (key, part) DO UPDATE SET shard = excluded.shard, embedding = excluded.embedding"""

# In the transaction of the rows: the ledger is never ahead of them nor behind.
WRITE_LEDGER = """
INSERT INTO reembed_ledger (index_table, shard, marker_digest, rows)
VALUES (%(table)s, %(shard)s, %(digest)s, %(rows)s)
ON CONFLICT (index_table, shard)
DO UPDATE SET marker_digest = excluded.marker_digest, rows = excluded.rows, loaded_at = now()"""

DELETE_LEDGER = "DELETE FROM reembed_ledger WHERE index_table = %(table)s AND shard = %(shard)s"

ROWS = "SELECT coalesce(sum(rows), 0) FROM reembed_ledger WHERE index_table = %(table)s"

# Approximate search by cosine distance.
CREATE_HNSW = "CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw (embedding {operators})"

# One change of an alias at a time, whether or not it exists yet.
LOCK_ALIAS = "SELECT pg_advisory_xact_lock(hashtext('reembed alias'), hashtext(%(alias)s))"

ALIAS = "SELECT index_table FROM reembed_aliases WHERE alias = %(alias)s"

# A request changes an alias once: its repetition must not undo what came after it.
CHANGED_BY_REQUEST = """
SELECT 1 FROM reembed_alias_changes
WHERE alias = %(alias)s AND index_table = %(table)s AND request_id = %(request)s LIMIT 1"""

WRITE_ALIAS = """
INSERT INTO reembed_aliases (alias, index_table, request_id, previous)
VALUES (%(alias)s, %(table)s, %(request)s, %(previous)s)
ON CONFLICT (alias) DO UPDATE SET index_table = excluded.index_table, request_id = excluded.request_id,
    changed_at = now(), previous = excluded.previous"""

WRITE_ALIAS_CHANGE = """
INSERT INTO reembed_alias_changes (alias, index_table, previous, request_id)
VALUES (%(alias)s, %(table)s, %(previous)s, %(request)s)"""

# What an alias names now; else what the request of this id was indexed into.
TARGET = """
SELECT index_table, request_id FROM (
    SELECT 0 AS rank, index_table, request_id FROM reembed_aliases WHERE alias = %(name)s
    UNION ALL
    (SELECT 1, index_table, request_id FROM reembed_alias_changes WHERE request_id = %(name)s ORDER BY id DESC LIMIT 1)
) AS known ORDER BY rank LIMIT 1"""

# An asset's own vector, as text that a parameter can be.
VECTOR_OF_KEY = "SELECT embedding::text FROM {table} WHERE key = %(key)s ORDER BY part LIMIT 1"

# How many candidates HNSW looks at; its own 40 would cut a longer answer short.
SET_SEARCH_WIDTH = "SELECT set_config('hnsw.ef_search', %(width)s, true)"

# An untyped parameter takes the type of the column, halfvec or vector.
NEAREST = """
SELECT key, embedding <=> %(vector)s AS distance FROM {table}
ORDER BY embedding <=> %(vector)s LIMIT %(k)s"""
