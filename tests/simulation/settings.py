"""The controller's settings in a simulation: everything faster than on AWS, in the same proportions."""

from __future__ import annotations

from controller.settings import Settings

#: Slots of each Batch queue.
CAPACITY = {"g6e": 4, "g6": 4, "g5": 4, "ondemand": 5, "cpu": 3}


def simulated_settings(failures: int) -> Settings:
    """`failures`: the budget of a shard, a preparation and an index job."""

    def gpu(name: str, **more: object) -> dict[str, object]:
        return {"name": name, "job_definition": "infer:1", "max_live": 12, "backlog": 5, **more}

    return Settings.model_validate(
        {
            "database": {"url": "postgresql+asyncpg://nobody@127.0.0.1/none"},
            "sqs": {name: f"sqs://{name}" for name in ("requests", "reports", "batch_events", "rejects", "status")},
            "storage": {"control_bucket": "control"},
            "cpu": {"queue": "cpu", "prepare_definition": "prepare:1", "index_definition": "index:1"},
            "gpu_queues": [
                gpu("g6e"),
                gpu("g6"),
                gpu("g5"),
                gpu("ondemand", on_demand=True, multi_node_job_definition="nodes:1"),
            ],
            "models": ["tiny@1"],
            "tenants": {"stock": {"inputs": ["s3://photos/"], "outputs": ["s3://embeddings/"]}},
            "placement": {
                "array_max": 4,
                "start_seconds": 25,
                "reason_dwell_seconds": 10,
                "cooldown_seconds": 20,
                "cooldown_max_seconds": 60,
            },
            "retries": {"failures": failures, "backoff_seconds": 2, "backoff_max_seconds": 20},
            "reconcile": {
                "check_seconds": 25,
                "report_grace_seconds": 6,
                "lost_seconds": 80,
                "lookup_grace_seconds": 40,
                "orphan_seconds": 40,
            },
            "work": {"heartbeat_seconds": 5, "shard_assets": 30, "chunk_assets": 15},
            "loops": {"lease_seconds": 20, "claim_seconds": 30, "poll_seconds": 10, "progress_seconds": 60},
        }
    )
