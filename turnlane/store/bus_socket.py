"""The event bus between processes of one machine: a hub on a Unix domain socket, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import socket
import stat
import tempfile
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from pydantic import ValidationError

from turnlane.records.errors import StackError
from turnlane.records.events import EVENT_ADAPTER, Event
from turnlane.store.bus import RESYNC, Resync, Watch, Watches, running_loop
from turnlane.store.bus_wire import CLOSE_SECONDS, MAX_FRAME, Op, Outbox, Packet, close_writer, read_packet

LONGEST_PATH = 100
FIRST_BACKOFF = 0.05
LAST_BACKOFF = 1.0
LINK_SECONDS = 1.0


def socket_path(folder: Path) -> Path:
    """Where the hub of a state folder listens: in it, or in a short private folder when the path is too long.

    Raises `StackError` when the private folder belongs to somebody else.
    """
    plain = folder.resolve() / "bus.sock"
    if len(os.fsencode(plain)) <= LONGEST_PATH:
        return plain
    name = hashlib.sha256(os.fsencode(plain)).hexdigest()[:16]
    short = Path(tempfile.gettempdir()) / f"turnlane-{os.geteuid()}-{name}"
    short.mkdir(mode=0o700, exist_ok=True)
    found = short.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StackError(f"{short} is not a private folder of this user: remove it", path=str(short))
    return short / "bus.sock"


class _Peer:
    """The hub's side of one connection."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.conversations: set[str] = set()


class BusServer:
    """The hub: passes every event on to the connections that watch its conversation, while the context is open.

    The socket is for this user only (mode 0600). Entering raises `StackError` when another hub answers there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._watchers: dict[str, set[_Peer]] = {}
        self._peers: dict[_Peer, asyncio.Task[None]] = {}

    async def __aenter__(self) -> BusServer:
        self._server = await asyncio.start_unix_server(self._serve, sock=_listening_socket(self.path))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is None:
            return
        self._server.close()
        tasks = tuple(self._peers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self.path.unlink(missing_ok=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        peer = _Peer()
        self._peers[peer] = asyncio.ensure_future(self._relay(peer, reader, writer))

    async def _relay(self, peer: _Peer, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve one connection until it ends. A writer that waits for a slow peer holds up nobody else."""
        writing = asyncio.ensure_future(peer.outbox.write_to(writer))
        try:
            while (packet := await read_packet(reader)) is not None:
                self._handle(peer, packet)
        finally:
            self._peers.pop(peer, None)
            for conversation_id in tuple(peer.conversations):
                self._forget(peer, conversation_id)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await close_writer(writer)

    def _handle(self, peer: _Peer, packet: Packet) -> None:
        conversation_id = packet.conversation_id
        if packet.op is Op.EVENT and conversation_id is not None:
            for watcher in self._watchers.get(conversation_id, ()):
                watcher.outbox.put_event(packet)
        elif packet.op is Op.RESYNC:
            watchers = self._peers if conversation_id is None else self._watchers.get(conversation_id, ())
            for watcher in watchers:
                watcher.outbox.put_event(packet)
        elif packet.op is Op.SUBSCRIBE and conversation_id is not None:
            self._watchers.setdefault(conversation_id, set()).add(peer)
            peer.conversations.add(conversation_id)
            peer.outbox.put_control(Packet(Op.SUBSCRIBED, conversation_id, packet.body))
        elif packet.op is Op.UNSUBSCRIBE and conversation_id is not None:
            self._forget(peer, conversation_id)

    def _forget(self, peer: _Peer, conversation_id: str) -> None:
        peer.conversations.discard(conversation_id)
        watchers = self._watchers.get(conversation_id, set())
        watchers.discard(peer)
        if not watchers:
            self._watchers.pop(conversation_id, None)


def _listening_socket(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, in the place of one that a dead hub left."""
    _clear_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # Between bind and listen every connect is refused, so nobody slips in before the mode is right.
        path.chmod(0o600)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise StackError(f"the event bus cannot listen at {path}: {error.strerror}", path=str(path)) from error
    listener.setblocking(False)
    return listener


def _clear_stale(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise StackError(f"an event bus is already running at {path}", path=str(path))


class _Subscription:
    """This process's interest in one conversation, shared by its watches.

    `number` tells the hub's answer to this subscribing from one to an earlier. `in_doubt` means events
    may have been missed, so that the watches must resync once the hub has answered.
    """

    def __init__(self) -> None:
        self.number = b""
        self.effective = asyncio.Event()
        self.in_doubt = False
        self.watches = 0


class SocketBus:
    """A client of the hub: publishes and watches over one connection, and connects again when it breaks.

    While the hub is away, published events wait, up to a limit, and watchers are told to resync once it
    is back. Belongs to the loop that uses it first; after that `publish` may be called from any thread.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watches = Watches()
        self._subscriptions: dict[str, _Subscription] = {}
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox | None = None
        self._link: asyncio.Task[None] | None = None
        self._is_away = False
        self._closed = False

    def publish(self, event: Event) -> None:
        """Hand an event to the hub, soon. When too much waits already, it is dropped and everyone told to resync."""
        packet = _packet(event)
        # Without a loop, or with one that was closed, there is no connection: the event is lost, the ledger has it.
        with contextlib.suppress(RuntimeError):
            loop = self._loop or asyncio.get_running_loop()
            if running_loop() is loop:
                self._send(packet)
            else:
                loop.call_soon_threadsafe(self._send, packet)

    @asynccontextmanager
    async def subscribe(self, conversation_id: str, *, capacity: int = 1024) -> AsyncIterator[Watch]:
        """Watch a conversation while the context is open.

        Entering waits for the hub to say so. When the hub does not answer in time the watch starts with a
        resync, and gets another when the hub is back.
        """
        watch = Watch(capacity)
        self._watches.add(conversation_id, watch)
        try:
            await self._until_effective(self._join(conversation_id), watch)
            yield watch
        finally:
            self._watches.remove(conversation_id, watch)
            watch.end()
            self._leave(conversation_id)

    async def close(self) -> None:
        """Send what waits if the hub takes it soon, and close the connection; open subscriptions end."""
        self._closed = True
        for watch in self._watches:
            watch.end()
        if self._link is None or self._outbox is None:
            return
        if not self._is_away:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._outbox.flush()
        self._link.cancel()
        await asyncio.gather(self._link, return_exceptions=True)

    def _send(self, packet: Packet) -> None:
        if not self._closed:
            self._started().put_event(packet)

    def _started(self) -> Outbox:
        """Return the outbox, keeping the link up from the first use on."""
        if self._outbox is None:
            self._outbox = Outbox()
            self._loop = asyncio.get_running_loop()
            self._link = self._loop.create_task(self._keep_linked(self._outbox))
        return self._outbox

    def _join(self, conversation_id: str) -> _Subscription:
        outbox = self._started()
        subscription = self._subscriptions.get(conversation_id)
        if subscription is None:
            subscription = self._subscriptions[conversation_id] = _Subscription()
            self._ask(outbox, conversation_id, subscription)
        subscription.watches += 1
        return subscription

    def _ask(self, outbox: Outbox, conversation_id: str, subscription: _Subscription) -> None:
        subscription.number = str(next(self._numbers)).encode()
        subscription.effective.clear()
        outbox.put_control(Packet(Op.SUBSCRIBE, conversation_id, subscription.number))

    def _leave(self, conversation_id: str) -> None:
        subscription = self._subscriptions[conversation_id]
        subscription.watches -= 1
        if subscription.watches == 0:
            del self._subscriptions[conversation_id]
            self._started().put_control(Packet(Op.UNSUBSCRIBE, conversation_id))

    async def _until_effective(self, subscription: _Subscription, watch: Watch) -> None:
        if self._closed:
            watch.end()
            return
        try:
            async with asyncio.timeout(LINK_SECONDS):
                await subscription.effective.wait()
        except TimeoutError:
            subscription.in_doubt = True
            watch.offer(RESYNC)

    async def _keep_linked(self, outbox: Outbox) -> None:
        backoff = FIRST_BACKOFF
        was_linked = False
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._path))
            except OSError:
                self._is_away = True
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF)
                continue
            backoff, self._is_away = FIRST_BACKOFF, False
            try:
                self._introduce(outbox, after_break=was_linked)
                await self._converse(outbox, reader, writer)
            finally:
                self._is_away = True
                await close_writer(writer)
            was_linked = True

    def _introduce(self, outbox: Outbox, *, after_break: bool) -> None:
        """Subscribe afresh. After a break, what either side had sent last may be lost: all are told to resync."""
        outbox.drop_control()
        if after_break:
            outbox.put_control(Packet(Op.RESYNC))
        for conversation_id, subscription in self._subscriptions.items():
            subscription.in_doubt = subscription.in_doubt or after_break
            self._ask(outbox, conversation_id, subscription)

    async def _converse(self, outbox: Outbox, reader: StreamReader, writer: StreamWriter) -> None:
        """Speak over one connection until it ends."""
        writing = asyncio.ensure_future(outbox.write_to(writer))
        try:
            while (packet := await read_packet(reader)) is not None:
                self._handle(packet)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _handle(self, packet: Packet) -> None:
        conversation_id = packet.conversation_id
        if packet.op is Op.EVENT and conversation_id is not None:
            self._tell(self._watches.of(conversation_id), _event(packet.body))
        elif packet.op is Op.RESYNC:
            self._tell(self._watches if conversation_id is None else self._watches.of(conversation_id), RESYNC)
        elif packet.op is Op.SUBSCRIBED and conversation_id is not None:
            self._confirm(conversation_id, packet.body)

    def _confirm(self, conversation_id: str, number: bytes) -> None:
        subscription = self._subscriptions.get(conversation_id)
        if subscription is None or subscription.number != number:
            return
        subscription.effective.set()
        # Only now: a watcher that caught up before the hub knew it could miss what came in between.
        if subscription.in_doubt:
            subscription.in_doubt = False
            self._tell(self._watches.of(conversation_id), RESYNC)

    def _tell(self, watches: Iterable[Watch], item: Event | Resync) -> None:
        for watch in watches:
            watch.offer(item)


def _packet(event: Event) -> Packet:
    body = event.model_dump_json().encode()
    if len(body) > MAX_FRAME:
        return Packet(Op.RESYNC, event.conversation_id)
    return Packet(Op.EVENT, event.conversation_id, body)


def _event(body: bytes) -> Event | Resync:
    """Read an event. One that this release cannot read becomes a resync: the store has it."""
    try:
        return EVENT_ADAPTER.validate_json(body)
    except ValidationError:
        return RESYNC
