# SPDX-License-Identifier: Apache-2.0
"""Moves the pages of Larder's backend `mooncake`: the process in which Mooncake's client library runs.

Larder starts it with a Python that has the package `mooncake`, and talks to it over sockets: one for each thread here,
with one call at a time, so that a call wakes exactly one thread. Payloads do not pass through them: they lie in memory
that both processes have mapped. Frames are those of storage/mooncake/helper_wire.h. The end of a socket ends this
process. What fails is told as a code for each object, or as words; nothing is printed.

    mooncake_helper.py MEMORY SOCKET...     numbers of descriptors that Larder has left open
"""

import array
import ctypes
import itertools
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

REQUEST = struct.Struct("<4sIQ")  # magic, bytes of the body, number
REPLY = struct.Struct("<4sIQiI")  # magic, bytes of the body, number, 0 or 1: failed, count of codes
REQUEST_MAGIC, REPLY_MAGIC = b"LMQ1", b"LMR1"
MOST_BODY = 64 << 20

# Codes of Mooncake that decide what is done here; all others are passed on.
NOT_READY, NOT_FOUND, EXISTS = -703, -704, -705
OTHER_LENGTH = (-600, -800)  # an object of another length may end with these: wrong arguments, a move that failed
MASTER_AWAY = -900  # and below: it is asked nothing more, since each question takes as long to fail
# Codes of this program's own.
BUSY, SHORT = -2, -3
NO_CODES = array.array("q")
PAUSES_FOR_GROUP = [0.001 * 2**i - 0.001 for i in range(8)]  # seconds; a quarter of one in all
SECONDS_TO_CLOSE = 3.0
SECONDS_TO_CONNECT = 3.0


class Refused(Exception):
    """Words for whoever started Larder."""


def parse(data):
    return json.loads(data.decode("utf-8", "replace"))


def split_address(text):
    """"host:port" -> (host, port); a list of masters (etcd://...) cannot be tried, and gives None."""
    if "://" in text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit():
        raise Refused(f"master_server_address: '{text}' is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def try_master(text):
    # The library asks a master that is not there for 90 seconds.
    address = split_address(text)
    if address is None:
        return
    try:
        socket.create_connection(address, SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise Refused(f"no Mooncake master answers at {text} ({error}): start mooncake_master, "
                      "or mend master_server_address") from None


def load_package(directory):
    if directory:
        sys.path.insert(0, directory)
    try:
        from mooncake import store
    except ImportError as error:
        raise Refused(f"{sys.executable} cannot load the package mooncake ({error}): install "
                      "mooncake-transfer-engine there, or name another interpreter with option 'python'") from None
    needed = ("batch_put_session_start", "batch_put_from_multi_buffer_ranges", "batch_put_session_end",
              "batch_put_session_revoke", "batch_get_into_multi_buffers", "batch_is_exist", "batch_remove")
    missing = [name for name in needed if not hasattr(store.MooncakeDistributedStore, name)]
    if missing:
        raise Refused(f"the package mooncake of {sys.executable} is too old: it has no {missing[0]}; "
                      "0.3.13 is the first that will do")
    return store


def spans(counts):
    """Counts of neighbours in a list -> (begin, end) of each."""
    ends = list(itertools.accumulate(counts))
    return list(zip([0] + ends, ends))


class Memory:
    """A piece of memory that Larder has mapped, too."""

    def __init__(self, descriptor):
        self.bytes = os.fstat(descriptor).st_size
        # Mapped as a whole at once (where Python knows how: from 3.10 on), and not with the first pages that come.
        self.map = mmap.mmap(descriptor, self.bytes, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def place(self, offset, length):
        # The library moves what it is told to, inside its registered memory or not.
        if offset < 0 or length < 0 or offset + length > self.bytes:
            raise ValueError(f"{length} bytes at {offset} are not inside the memory of {self.bytes}")
        return self.address + offset


class Lane:
    """A socket: requests come one by one, and each has its answer before the next comes."""

    def __init__(self, descriptor):
        self.connection = socket.socket(fileno=descriptor)

    def receive(self, size):
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self.connection.recv_into(view[got:])
            if count == 0:
                raise EOFError
            got += count
        return data

    def next_request(self):
        magic, size, number = REQUEST.unpack(self.receive(REQUEST.size))
        if magic != REQUEST_MAGIC or size > MOST_BODY:
            raise EOFError
        return number, self.receive(size)

    def answer(self, number, codes, text=""):
        body = codes.tobytes() + text.encode("utf-8", "replace")[:4096]
        self.connection.sendall(REPLY.pack(REPLY_MAGIC, len(body), number, 1 if text else 0, len(codes)) + body)


class Helper:
    def __init__(self, memory):
        self.memories = [Memory(memory)]
        self.module = self.store = None
        self.replicas, self.is_soft_pinned, self.is_grouping, self.is_lending = 1, False, True, False

    # Requests.

    def setup(self, o):
        try_master(o["master_server_address"])
        self.module = load_package(o["package_directory"])
        self.replicas, self.is_soft_pinned, self.is_grouping = o["replica_num"], o["soft_pin"], o["groups"]
        store = self.module.MooncakeDistributedStore()
        code = store.setup(o["local_hostname"], o["metadata_server"], o["global_segment_size"], o["local_buffer_size"],
                           o["protocol"], o["device_name"], o["master_server_address"])
        if code != 0:
            raise Refused(f"Mooncake's client refused its setup with code {code}: local_hostname "
                          f"'{o['local_hostname']}', metadata_server '{o['metadata_server']}', protocol "
                          f"'{o['protocol']}', device_name '{o['device_name']}', global_segment_size "
                          f"{o['global_segment_size']}")
        self.store, self.is_lending = store, o["global_segment_size"] > 0
        for memory in self.memories:
            code = store.register_buffer(memory.address, memory.bytes)
            if code != 0:
                raise Refused(f"Mooncake's client refused to register {memory.bytes} bytes of memory with code {code}; "
                              "with rdma that is mostly the limit of locked memory (ulimit -l)")
        return []

    def exists(self, body):
        return self.store.batch_is_exist(body["names"])

    def places(self, lists):
        """[[memory, offset, bytes, ...] of each object] -> addresses, sizes."""
        memories, pointers, sizes = self.memories, [], []
        for one in lists:
            if len(one) == 3:  # nearly always
                memory, offset, length = one
                pointers.append([memories[memory].place(offset, length)])
                sizes.append([length])
            else:
                pointers.append([memories[one[i]].place(one[i + 1], one[i + 2]) for i in range(0, len(one), 3)])
                sizes.append(one[2::3])
        return pointers, sizes

    def fetch(self, names, pointers, sizes):
        got = list(self.store.batch_get_into_multi_buffers(names, pointers, sizes))
        if len(got) != len(names):
            raise RuntimeError(f"{len(got)} codes for {len(names)} objects")
        return got

    def get(self, body):
        names = body["names"]
        pointers, sizes = self.places(body["at"])
        got = self.fetch(names, pointers, sizes)
        # A group becomes visible object by object. What is missing while another of its part is there may be the rest
        # of its group: looked at once more, and, while it is begun and not ended, again.
        parts = spans(body["parts"])
        awaited = (NOT_FOUND, NOT_READY)
        for pause in PAUSES_FOR_GROUP if min(got, default=0) < 0 else ():
            missing = []
            for begin, end in parts:
                lacking = [i for i in range(begin, end) if got[i] in awaited]
                if len(lacking) < end - begin:
                    missing += lacking
            if not missing:
                break
            time.sleep(pause)
            again = self.fetch([names[i] for i in missing], [pointers[i] for i in missing],
                               [sizes[i] for i in missing])
            for i, code in zip(missing, again):
                got[i] = code
            awaited = (NOT_READY,)
        is_master_away = False
        for i, code in enumerate(got):
            wanted = sum(sizes[i])
            if code in OTHER_LENGTH and not is_master_away:
                size = self.store.get_size(names[i])
                is_master_away = size <= MASTER_AWAY
                if size >= 0 and size != wanted:
                    got[i] = NOT_FOUND
            elif 0 <= code < wanted:
                got[i] = SHORT
        return got

    def config(self, groups, tags):
        config = self.module.ReplicateConfig()
        config.replica_num = self.replicas
        if self.is_soft_pinned:
            config.soft_pin_action = self.module.SoftPinAction.ENABLE
        if self.is_grouping:
            config.group_ids = [tag for (begin, end), tag in zip(groups, tags) for _ in range(begin, end)]
        return config

    def put(self, body):
        """Writes groups of objects. A group becomes visible as a whole, in one call of the master; what fails leaves
        nothing. One code per object: 0 written, 1 was there already, else why the object's group failed."""
        names = body["names"]
        pointers, sizes = self.places(body["at"])
        groups = spans(body["groups"])
        totals = [sum(one) for one in sizes]
        store = self.store
        codes = list(store.batch_put_session_start(names, totals, self.config(groups, body["tags"])))
        if len(codes) != len(names):
            raise RuntimeError(f"{len(codes)} codes for {len(names)} objects")
        opened = {i for i, code in enumerate(codes) if code == 0}
        try:
            if any(codes):
                self.tell_duplicates(names, codes)
                self.close_failed(groups, codes, names, opened)
            self.move(names, pointers, sizes, totals, codes, opened)
            if any(codes):
                self.close_failed(groups, codes, names, opened)
            self.show(groups, codes, names, opened)
        finally:
            self.revoke(names, opened)
        return codes

    def tell_duplicates(self, names, codes):
        there = [i for i, code in enumerate(codes) if code == EXISTS]
        if there:
            for i, found in zip(there, self.store.batch_is_exist([names[i] for i in there])):
                codes[i] = 1 if found == 1 else BUSY if found == 0 else found

    def move(self, names, pointers, sizes, totals, codes, opened):
        order = sorted(opened)
        if not order:
            return
        if len(order) < len(names):
            names, pointers, sizes = ([them[i] for i in order] for them in (names, pointers, sizes))
        offsets = [[0] if len(one) == 1 else [0, *itertools.accumulate(one[:-1])] for one in sizes]
        moved = self.store.batch_put_from_multi_buffer_ranges(names, pointers, sizes, offsets)
        for i, code in zip(order, moved):
            codes[i] = 0 if code == totals[i] else code if code < 0 else SHORT

    def close_failed(self, groups, codes, names, opened):
        """All objects of a group that has a failed one get its code; those that were begun are taken back."""
        for begin, end in groups:
            failed = next((code for code in codes[begin:end] if code < 0), 0)
            if failed:
                codes[begin:end] = [failed] * (end - begin)
                self.revoke(names, opened.intersection(range(begin, end)))
                opened.difference_update(range(begin, end))

    def show(self, groups, codes, names, opened):
        # Of a group the anchor first, and it is last in its group: nothing is seen before its anchor.
        order = [i for begin, end in groups for i in reversed(range(begin, end)) if i in opened]
        if not order:
            return
        ended = self.store.batch_put_session_end([names[i] for i in order])
        for i, code in zip(order, ended):
            codes[i] = code
        opened.difference_update(order)
        if not any(ended):
            return
        torn = [names[i] for begin, end in groups if min(codes[begin:end]) < 0
                for i in range(begin, end) if i in order and codes[i] == 0]
        if torn:
            self.store.batch_remove(torn, True)
        self.close_failed(groups, codes, names, opened)

    def revoke(self, names, which):
        if which:
            self.store.batch_put_session_revoke([names[i] for i in sorted(which)])

    def remove(self, body):
        return self.store.batch_remove(body["names"], True)

    def clear(self, body):
        return [self.store.remove_by_regex(body["pattern"], True)]

    def run(self, lane):
        """Answers one request. EOFError, OSError: the socket has ended."""
        number, data = lane.next_request()
        codes, words = NO_CODES, ""
        try:
            body = parse(data)
            operation = body["op"]
            if operation not in ("setup", "exists", "get", "put", "remove", "clear"):
                raise ValueError(f"no operation '{operation}'")
            codes = array.array("q", getattr(self, operation)(body))
        except Refused as error:
            words = str(error)
        except Exception as error:  # what a library raises is told, and ends nothing here
            words = f"{type(error).__name__}: {error}"
        lane.answer(number, codes, words)

    # Threads.

    def work(self, lane):
        try:
            while True:
                self.run(lane)
        except (EOFError, OSError):
            self.end()

    def end(self):
        # Who has lent memory takes leave of the master, in the time that there is; a call that hangs keeps nobody. Of
        # others nothing is left there.
        if not self.is_lending:
            os._exit(0)
        closing = threading.Thread(target=lambda: self.store and self.store.close(), daemon=True)
        closing.start()
        closing.join(SECONDS_TO_CLOSE)
        os._exit(0)

    def watch(self, lane):
        """All threads may be in calls that hang: the end of the socket is seen here."""
        poll = select.poll()
        poll.register(lane.connection, 0)
        while True:
            if any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll()):
                self.end()


def main():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Larder ends this process when it has ended its own work
    os.environ.setdefault("GLOG_minloglevel", "2")
    helper = Helper(int(sys.argv[1]))
    lanes = [Lane(int(text)) for text in sys.argv[2:]]
    helper.run(lanes[0])  # the setup
    for lane in lanes[1:]:
        threading.Thread(target=helper.work, args=(lane,), daemon=True).start()
    threading.Thread(target=helper.watch, args=(lanes[0],), daemon=True).start()
    helper.work(lanes[0])


main()
