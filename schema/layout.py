"""Where things live on S3. Keys only; nobody else concatenates a key.

Control bucket:

    requests/<request>/plan/<attempt>/shards/<shard>.shard     packed address files
    requests/<request>/plan.json                               published once, If-None-Match
    requests/<request>/request.json                            what was asked, before the first job is written
    assignments/<job>.json                                     what the children of one Batch job do

Output prefix of a request (`output.uri`), below the digest of request, plan, model, preprocessing and
dtype:

    <digest>/chunks/<shard>/<chunk>/<sha256>.parquet
    <digest>/commits/<shard>/g<generation>.json
    <digest>/manifest.json  <digest>/failures.parquet
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Location:
    """A bucket and a key or prefix in it. `parse` takes `s3://bucket/key` and never changes the key."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> Location:
        """Split an S3 URI; ValueError for anything else."""
        scheme, _, rest = uri.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme != "s3" or not bucket:
            raise ValueError(f"not an S3 URI: {uri!r}; write s3://bucket/key")
        return cls(bucket, key)

    @property
    def uri(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    def join(self, suffix: str) -> Location:
        """`suffix` below this location, with exactly one slash between them."""
        prefix = self.key if not self.key or self.key.endswith("/") else self.key + "/"
        return Location(self.bucket, prefix + suffix)


def plan_key(request_id: str) -> str:
    return f"requests/{request_id}/plan.json"


def request_key(request_id: str) -> str:
    return f"requests/{request_id}/request.json"


def shard_key(request_id: str, attempt_id: str, shard: int) -> str:
    return f"requests/{request_id}/plan/{attempt_id}/shards/{shard:07d}.shard"


def assignment_key(job_id: str) -> str:
    return f"assignments/{job_id}.json"


def inline_keys_key(request_id: str) -> str:
    """The keys of a request that carried them inline, one JSON array of strings."""
    return f"requests/{request_id}/inline-keys.json"


def output_digest(request_id: str, plan_digest: str, model: str, preprocessing_digest: str, dtype: str) -> str:
    """16 hex digits of everything that decides the output, and of the request: no two requests share a prefix."""
    text = "\0".join([request_id, plan_digest, model, preprocessing_digest, dtype])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def chunk_prefix(shard: int) -> str:
    return f"chunks/{shard:07d}/"


def chunk_key(shard: int, chunk: int, sha256: str) -> str:
    return f"{chunk_prefix(shard)}{chunk:05d}/{sha256}.parquet"


def partial_key(shard: int, chunk: int, sha256: str) -> str:
    """A chunk that still has retryable rows; no commit marker may name it."""
    return f"{chunk_prefix(shard)}{chunk:05d}/{sha256}.partial.parquet"


def commit_key(shard: int, generation: int) -> str:
    return f"commits/{shard:07d}/g{generation}.json"


MANIFEST = "manifest.json"
FAILURES = "failures.parquet"
#: Bytes that the longest key of an output has below `output.uri`.
LONGEST_BELOW_OUTPUT = len(f"{'0' * 16}/{partial_key(0, 0, '0' * 64)}")
