"""Admission: a request of which no queue can run a shard is refused, submitted or amended."""

from __future__ import annotations

from dataclasses import replace

from controller.core.admission import Amend, Policy, Submit, amended_queues_reject
from schema.messages import Mode, RejectCode
from tests.unit.test_admission import POLICY, admitted, minimal, refusal

MODEL = "clip-l@3"


def test_multi_node_needs_an_on_demand_queue() -> None:
    spot_only = Policy(POLICY.tenants, POLICY.models, {"g6": False}, POLICY.max_body_bytes)
    anywhere, named = minimal(mode="multi_node"), minimal(mode="multi_node", queues=["g6"])
    assert isinstance(admitted(anywhere), Submit)
    assert refusal(anywhere, spot_only).code is RejectCode.UNSUPPORTED
    assert 'set it to "array"' in refusal(anywhere, spot_only).fix
    assert refusal(named).field == "data.queues"
    amend = admitted(minimal() | {"type": "request.amend", "data": minimal(queues=["g6"])["data"]})
    assert isinstance(amend, Amend)
    assert amended_queues_reject(amend, Mode.ARRAY, MODEL, POLICY) is None
    refused = amended_queues_reject(amend, Mode.MULTI_NODE, MODEL, POLICY)
    assert refused is not None
    assert refused.code is RejectCode.UNSUPPORTED


def test_a_model_that_no_queue_has_the_memory_for() -> None:
    queues = {"g6e": False, "g6": False, "large": True}
    holding = {MODEL: frozenset({"g6e"})}
    policy = Policy(POLICY.tenants, POLICY.models, queues, POLICY.max_body_bytes, holding)
    assert isinstance(admitted(minimal(), policy), Submit)
    assert isinstance(admitted(minimal(queues=["g6", "g6e"]), policy), Submit)
    named = refusal(minimal(queues=["g6"]), policy)
    assert (named.code, named.field) == (RejectCode.UNSUPPORTED, "data.queues")
    assert named.fix == "name one that has it: g6e"
    # The only queue for many nodes has small cards.
    assert refusal(minimal(mode="multi_node"), policy).field == "data.model"
    nowhere = refusal(minimal(), replace(policy, holding={MODEL: frozenset()}))
    assert (nowhere.code, nowhere.field) == (RejectCode.UNSUPPORTED, "data.model")
    amend = admitted(minimal() | {"type": "request.amend", "data": minimal(queues=["g6"])["data"]}, policy)
    assert isinstance(amend, Amend)
    assert amended_queues_reject(amend, Mode.ARRAY, "another@1", policy) is None
    refused = amended_queues_reject(amend, Mode.ARRAY, MODEL, policy)
    assert refused is not None
    assert (refused.code, refused.tenant) == (RejectCode.UNSUPPORTED, "search")
