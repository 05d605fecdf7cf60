"""The errors a caller of Batch can see.

    BatchError
    ├── ClientError       400 ClientException: the caller's fault, never worth a retry as it stands
    ├── ServerError       500 ServerException: ours; the call may or may not have taken effect
    └── Throttled         429 TooManyRequestsException: not in the service model, so a plain ClientError in botocore

Raised anywhere below the HTTP layer, rendered only there.
"""

from __future__ import annotations

from typing import ClassVar


class BatchError(Exception):
    http_status: ClassVar[int]
    code: ClassVar[str]


class ClientError(BatchError):
    http_status = 400
    code = "ClientException"


class ServerError(BatchError):
    http_status = 500
    code = "ServerException"


class Throttled(BatchError):
    http_status = 429
    code = "TooManyRequestsException"
