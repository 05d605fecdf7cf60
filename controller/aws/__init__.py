"""Adapters of the ports over aiobotocore: SQS, Batch and S3. Thin, typed, without policy.

`clients` opens the SDK's clients, `errors` turns what they raise into the ports' errors, `rates` keeps Batch calls
under the account's ceiling; `sqs`, `batch` and `s3` are one adapter each, and `submission` builds SubmitJob.
"""
