"""The freeze of every submission. Unlike other orders it holds at once: the answer is what is on record now."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.orders import Order
from controller.api.site import DEFAULT_ACTOR, Actor, OfSite, Site
from controller.api.views import FreezeView
from controller.core.records import SUBMISSIONS, Freeze

router = APIRouter(prefix="/api/v1", tags=["freeze"])


@router.get("/freeze", summary="Whether submissions are frozen, since when, by whom and why")
async def show_freeze(site: OfSite) -> FreezeView:
    async with site.store.transaction() as tx:
        return FreezeView.model_validate(await tx.queues.freeze())


@router.post("/freeze", summary="Stop every submission in every replica; what runs goes on")
async def freeze(body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> FreezeView:
    return await _put(site, body, actor, frozen=True)


@router.post("/unfreeze", summary="Submit again")
async def unfreeze(body: Order, site: OfSite, actor: Actor = DEFAULT_ACTOR) -> FreezeView:
    return await _put(site, body, actor, frozen=False)


async def _put(site: Site, body: Order, actor: str, *, frozen: bool) -> FreezeView:
    """The row and its line of the audit trail, together or not at all."""
    now = site.clock.now()
    wanted = Freeze(frozen=frozen, actor=actor, reason=body.reason, changed_at=now)
    async with site.store.transaction() as tx:
        await tx.queues.put_freeze(wanted)
        await tx.operations.audit(
            id=site.entropy.new_id("u"),
            at=now,
            actor=actor,
            action="freeze" if frozen else "unfreeze",
            target=SUBMISSIONS,
            reason=body.reason,
            detail={},
        )
    return FreezeView.model_validate(wanted)
