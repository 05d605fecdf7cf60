"""A stand-in for AWS Batch: one loopback process that stock boto3 and aiobotocore talk to over REST-JSON.

It owns the observable behaviour of Batch: validation, the state machine in time, arrays, multi-node jobs, capacity
per queue, reasons, events, listings, limits and faults on demand. Jobs are real subprocesses of this host. It must
not know this product: it imports none of its packages and reads none of its tables. It keeps everything in memory,
so it fails by forgetting: after a restart every job is unknown, as if its record had aged out.

    python -m deploy.local.batch --port 0 --config config.json --log-dir logs/

Where to look: `config` (every setting), `lifecycle` (the only place that changes a status), `scheduler` (capacity),
`attempts` (one run of one job), `faults` (what can be made to go wrong), `launch` (start it from Python).
"""
