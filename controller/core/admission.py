"""Whether a request may be taken: the only gate between the requests queue and everything that costs money.

`admit(body, policy, now)` reads a body, checks it against the deployment's policy and answers with what to do. It
never raises, whatever the text. Nothing has been asked of AWS or the database before it; what only the database
knows (a conflict of idempotency keys, a request that does not exist, one that is over) intake decides, with the
refusals built in `controller.core.rejects`.

Allow-lists hold URIs, compared byte by byte after the bucket matched exactly; nothing is normalised:

- `s3://bucket/prefix/`  that folder; so does the same without the last slash, which never means `prefix-other`
- `s3://bucket/prefix*`  every key that begins with these bytes
- `s3://bucket/` or `s3://bucket`  the whole bucket

A model on a tenant's list is `name@version`, or `name@*`, or `*`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controller.core.rejects import (
    NO_ORIGIN,
    RULES,
    Origin,
    Reject,
    conflict_reject,
    needs_gpu_memory,
    needs_on_demand,
    rejected,
    too_late,
    unknown_request,
)
from controller.core.wire import Message, Request, read
from schema.fields import MAX_KEY_BYTES
from schema.layout import LONGEST_BELOW_OUTPUT, Location
from schema.messages import (
    InlineSource,
    ManifestSource,
    Mode,
    RejectCode,
    RequestAmend,
    RequestCancel,
    RequestSubmit,
)
from schema.parsing import is_s3_uri

__all__ = [
    "Amend",
    "Cancel",
    "Origin",
    "Policy",
    "Reject",
    "Submit",
    "TenantPolicy",
    "admit",
    "amended_queues_reject",
    "body_digest",
    "conflict_reject",
    "rejected",
    "request_id",
    "too_late",
    "unknown_request",
]


@dataclass(frozen=True)
class TenantPolicy:
    """What one tenant may read, write and run. ValueError for an entry that is not of a documented form."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for entry in (*self.inputs, *self.outputs):
            _area(entry)


@dataclass(frozen=True)
class Policy:
    """The deployment, as far as admission asks. `queues` says of each whether it is on-demand; `holding` names, for
    each model whose need of GPU memory is known, the queues that have it."""

    tenants: Mapping[str, TenantPolicy]
    models: frozenset[str]
    queues: Mapping[str, bool]
    max_body_bytes: int
    holding: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


@dataclass(frozen=True)
class Submit:
    """A request to record, unless it is on record: same digest, a duplicate; other digest, `conflict_reject`."""

    request_id: str
    message: RequestSubmit
    body_digest: str
    origin: Origin = NO_ORIGIN


@dataclass(frozen=True)
class Cancel:
    """A request to stop; `unknown_request` or `too_late` when there is nothing to stop."""

    request_id: str
    message: RequestCancel
    origin: Origin = NO_ORIGIN


@dataclass(frozen=True)
class Amend:
    """A request to change. It keeps a queue that can run it: see `amended_queues_reject`."""

    request_id: str
    message: RequestAmend
    origin: Origin = NO_ORIGIN


def admit(body: str, policy: Policy, now: datetime) -> Submit | Cancel | Amend | Reject:
    """Read, check, name. `now` is aware; the answer depends on nothing else."""
    message = read(body, policy.max_body_bytes)
    if isinstance(message, Reject):
        return message
    payload, origin = message.payload, message.origin
    name = request_id(payload.tenant, payload.idempotency_key)
    refused = _refusal(payload, policy, now)
    match payload:
        case RequestSubmit():
            submit = Submit(name, payload, body_digest(payload), origin)
            return _about(refused, message, submit) if refused else submit
        case RequestCancel():
            return _about(refused, message) if refused else Cancel(name, payload, origin)
        case RequestAmend():
            return _about(refused, message) if refused else Amend(name, payload, origin)


def request_id(tenant: str, idempotency_key: str) -> str:
    """Deterministic, so that a repeated message lands on the same row."""
    return "r-" + hashlib.sha256(f"{tenant}\0{idempotency_key}".encode()).hexdigest()[:20]


def body_digest(message: RequestSubmit) -> str:
    """sha256 of what was asked for, whatever the spelling: order of fields, unknown fields, stated defaults, offsets
    of times. Fields at their default are left out, so that a new optional field changes no digest on record."""
    asked = message.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def amended_queues_reject(amend: Amend, mode: Mode, model: str, policy: Policy) -> Reject | None:
    """For intake, which knows the request's mode and model: it must keep a queue that can run it."""
    if amend.message.queues is None:
        return None
    refused = _unfit(mode, model, amend.message.queues, policy)
    if refused is None:
        return None
    message = amend.message
    return replace(refused, tenant=message.tenant, idempotency_key=message.idempotency_key, origin=amend.origin)


# --- policy ----------------------------------------------------------------------------------------------------


def _refusal(payload: Request, policy: Policy, now: datetime) -> Reject | None:
    """The first objection, in the order in which a sender would want to hear them."""
    tenant = policy.tenants.get(payload.tenant)
    if tenant is None:
        return _no(RejectCode.UNKNOWN_TENANT, f"there is no tenant {payload.tenant!r} here", "data.tenant")
    if isinstance(payload, RequestCancel):
        return None
    refused = None
    if isinstance(payload, RequestSubmit):
        refused = _places(payload, tenant) or _model(payload, tenant, policy)
    refused = refused or _queues(payload.queues or [], policy)
    if refused is None and isinstance(payload, RequestSubmit):
        refused = _supported(payload, policy)
    return refused or _deadline(payload.deadline, now)


def _places(message: RequestSubmit, tenant: TenantPolicy) -> Reject | None:
    source = message.source
    match source:
        case ManifestSource():
            refused = _manifest(source, tenant)
        case InlineSource():
            refused = _keys(source, tenant)
        case _:
            refused = None
            if not _allowed(source.bucket, source.prefix, tenant.inputs):
                slash = bool(source.prefix) and _allowed(source.bucket, source.prefix + "/", tenant.inputs)
                fix = "end `prefix` with `/`: without it the prefix also takes in look-alike folders" if slash else ""
                refused = _forbidden("read that prefix of", source.bucket, "data.source.prefix", fix)
    if refused is not None:
        return refused
    output = Location.parse(message.output.uri).join("")
    if not _allowed(output.bucket, output.key, tenant.outputs):
        return _forbidden("write to that prefix of", output.bucket, "data.output.uri")
    longest = MAX_KEY_BYTES - LONGEST_BELOW_OUTPUT
    if len(output.key.encode()) > longest:
        reason = f"keys below that prefix would be longer than S3 takes ({MAX_KEY_BYTES} bytes)"
        fix = f"use a prefix of at most {longest} bytes in UTF-8"
        return replace(_no(RejectCode.INVALID_FIELD, reason, "data.output.uri"), fix=fix)
    return None


def _manifest(source: ManifestSource, tenant: TenantPolicy) -> Reject | None:
    """The keys inside are not known here, so the tenant must be allowed the whole bucket that they are in."""
    file = Location.parse(source.uri)
    if not _allowed(file.bucket, file.key, tenant.inputs):
        return _forbidden("read that object of", file.bucket, "data.source.uri")
    if not _allowed(source.bucket, "", tenant.inputs):
        fix = "a manifest may name any key of its bucket: send `prefix` or `keys`, or ask for the bucket"
        return _forbidden("read the whole of", source.bucket, "data.source.bucket", fix)
    return None


def _keys(source: InlineSource, tenant: TenantPolicy) -> Reject | None:
    areas = [area for area in map(_area, tenant.inputs) if area.bucket == source.bucket]
    for position, key in enumerate(source.keys):
        if not any(key.startswith(area.key) for area in areas):
            return _forbidden("read that key of", source.bucket, f"data.source.keys.{position}")
    return None


def _model(message: RequestSubmit, tenant: TenantPolicy, policy: Policy) -> Reject | None:
    model = message.model
    if model not in policy.models:
        return _no(RejectCode.UNKNOWN_MODEL, f"model {model!r} is not registered", "data.model")
    if not any(entry in ("*", model, model.partition("@")[0] + "@*") for entry in tenant.models):
        return _no(RejectCode.FORBIDDEN_MODEL, f"the tenant may not use model {model!r}", "data.model")
    return None


def _queues(queues: Iterable[str], policy: Policy) -> Reject | None:
    for position, queue in enumerate(queues):
        if queue not in policy.queues:
            known = ", ".join(policy.queues) or "none"
            reason = f"there is no queue {queue!r}; configured: {known}"
            return _no(RejectCode.UNKNOWN_QUEUE, reason, f"data.queues.{position}")
    return None


def _supported(message: RequestSubmit, policy: Policy) -> Reject | None:
    if message.since_request is not None:  # in the contract, refused until the diff of two plans exists
        return _no(RejectCode.UNSUPPORTED, "this version cannot take the difference to a plan", "data.since_request")
    return _unfit(message.mode, message.model, message.queues, policy)


def _unfit(mode: Mode, model: str, queues: Sequence[str] | None, policy: Policy) -> Reject | None:
    """None of the queues that the request names, or of all, can run it."""
    usable = list(policy.queues if queues is None else queues)
    if mode is Mode.MULTI_NODE:
        usable = [name for name in usable if policy.queues.get(name, False)]
        if not usable:
            return needs_on_demand(named=queues is not None)
    holding = policy.holding.get(model)
    if holding is None or holding.intersection(usable):
        return None
    return needs_gpu_memory(model, sorted(holding), named=queues is not None)


def _deadline(deadline: datetime | None, now: datetime) -> Reject | None:
    if deadline is None or deadline > now:
        return None
    reason = f"the deadline was over when the message was read at {now.isoformat(timespec='seconds')}"
    return _no(RejectCode.DEADLINE_PASSED, reason, "data.deadline")


# --- allow-lists -----------------------------------------------------------------------------------------------


def _area(entry: str) -> Location:
    """Bucket and byte prefix of an allow-list entry."""
    stem = entry.removesuffix("*")
    uri = stem if stem.removeprefix("s3://").count("/") else stem + "/"
    if not is_s3_uri(uri):
        raise ValueError(f"not an allow-list entry: {entry!r}; write s3://bucket/prefix/ or s3://bucket/prefix*")
    if stem != entry and uri != stem:
        raise ValueError(f"not an allow-list entry: {entry!r}; a `*` stands after the bucket's `/`")
    area = Location.parse(uri)
    return area if stem != entry or not area.key else Location(area.bucket, area.join("").key)


def _allowed(bucket: str, prefix: str, entries: Iterable[str]) -> bool:
    """Whether everything that begins with `prefix` lies in one of the areas."""
    return any(area.bucket == bucket and prefix.startswith(area.key) for area in map(_area, entries))


# --- refusals --------------------------------------------------------------------------------------------------


def _forbidden(action: str, bucket: str, field: str, fix: str = "") -> Reject:
    refused = _no(RejectCode.FORBIDDEN_BUCKET, f"the tenant may not {action} bucket {bucket!r}", field)
    return replace(refused, fix=fix) if fix else refused


def _no(code: RejectCode, reason: str, field: str) -> Reject:
    return Reject(code, reason, field, RULES[code].fix)


def _about(refused: Reject, message: Message, submit: Submit | None = None) -> Reject:
    """The refusal with its sender, and for a submit with what tells a repeat from a new request."""
    return replace(
        refused,
        tenant=message.payload.tenant,
        idempotency_key=message.payload.idempotency_key,
        origin=message.origin,
        request_id=submit.request_id if submit else None,
        body_digest=submit.body_digest if submit else None,
    )
