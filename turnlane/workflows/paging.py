"""Paging: signalled inputs that are too many to travel to a lane's next history go by way of the store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile

from temporalio import workflow

from turnlane.records.admissions import BlobRef, Input
from turnlane.records.lane import LaneStart
from turnlane.records.limits import KIB
from turnlane.records.mutations import PageRequest, SignalPage
from turnlane.workflows.calls import KEEP_SIGNALS, LOAD_SIGNALS, store_call
from turnlane.workflows.core import LaneCore, Pending
from turnlane.workflows.until import until

INBOX_BYTES = 64 * KIB
"""How much of the inbox travels itself."""

PAGE_BYTES = 96 * KIB


def page_of(inputs: Sequence[Input], limit: int) -> tuple[Input, ...]:
    """Return the first inputs that are within `limit` bytes of JSON together."""
    sizes = accumulate(len(given.model_dump_json().encode()) for given in inputs)
    return tuple(given for given, _ in takewhile(lambda item: item[1] <= limit, zip(inputs, sizes, strict=True)))


async def keep_pages(core: LaneCore) -> tuple[tuple[BlobRef, ...], tuple[Input, ...]]:
    """Once no handler is at work, return the pages to load, and the inputs that travel themselves.

    What is signalled while pages are kept is not in them, and travels unless it is too much again. Raises
    ConversationPurgedError: then there is nobody left to hear any of it.
    """
    pages, kept = list(core.unloaded), set[str]()
    while True:
        await until(workflow.all_handlers_finished)
        waiting = [given for given in core.unstored_signals if given.key not in kept]
        if len(page_of(waiting, INBOX_BYTES)) == len(waiting):
            return tuple(pages), tuple(waiting)
        inputs = page_of(waiting, PAGE_BYTES) or tuple(waiting[:1])
        page = SignalPage(conversation_id=core.conversation_id, inputs=inputs)
        pages.append(await store_call(KEEP_SIGNALS, page, BlobRef, core.settings, core.outage))
        kept.update(given.key for given in inputs)


async def load_pages(core: LaneCore, start: LaneStart) -> None:
    """Put the inputs of the lane's pages in front of what was signalled behind them."""
    for place, ref in enumerate(reversed(start.pages)):
        request = PageRequest(conversation_id=core.conversation_id, page=ref)
        page = await store_call(LOAD_SIGNALS, request, SignalPage, core.settings, core.outage)
        core.inbox.extendleft(Pending(given, is_signal=True) for given in reversed(page.inputs))
        core.unloaded = start.pages[: len(start.pages) - place - 1]
