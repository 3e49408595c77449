# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Mooncake's Python client, stricter than the real one; the store is a directory.

metadata_server is "fake:DIRECTORY". Of it, objects/ holds what is visible, begun/ what is being written, calls.log a
line for each call, and control.json what the test wants, read anew at each call:

    {"capacity": BYTES, "lease_ms": N, "discard_ms": N, "is_down": true, "faults": [FAULT...]}

FAULT is {"call": NAME, "skip": calls before, "times": calls, "do": ...} with do one of {"code": N, "index": I} (of
all objects, or of one), {"hang": true}, {"crash": true}, {"raise": TEXT}, {"answer": [...]}, {"exit": N},
{"seconds": N}: it takes so long; or, of a get, {"until_removed": true}: it takes until its objects are removed, or are
others; calls.log has "waits_until_removed" when it has seen what they are.

What the real one forgives, this one does not: memory outside the registered range ends the process (the real one may,
or moves what is there), as do the end of a session whose object is not written whole, a call before setup or after
close, and a change of the memory of a put while it runs. A get that fails leaves rubbish in its buffers; so does one
whose object is removed while it moves, and says that it came, as the real one's does where another object has taken
that place. Objects are moved in a random order. Sizes of 0 are refused. Objects that were asked for have a lease, and
are neither evicted nor removed without force. A group is evicted as a whole, and one that is soft-pinned after all
others.
"""

import collections
import ctypes
import enum
import fcntl
import json
import os
import random
import re
import sys
import threading
import time

NO_ROOM, REFUSED, NOT_READY, NOT_FOUND, EXISTS, LEASED = -200, -600, -703, -704, -705, -706
TRANSFER, NO_MASTER = -800, -900
NAME_LIMIT = 255


class SoftPinAction(enum.Enum):
    PRESERVE, ENABLE, DISABLE = range(3)


class ReplicateConfig:
    def __init__(self):
        self.replica_num, self.group_ids, self.soft_pin_action = 1, None, SoftPinAction.PRESERVE


def die(words):
    sys.stderr.write(f"fake mooncake: {words}\n")
    sys.stderr.flush()
    os.abort()


def bytes_at(address, size):
    return ctypes.string_at(address, size)


class Cluster:
    """The directory, under its lock."""

    def __init__(self, path):
        self.path = path
        for name in ("objects", "begun", "facts"):
            os.makedirs(os.path.join(path, name), exist_ok=True)
        self.lock_file = open(os.path.join(path, "lock"), "w")
        self.threads = threading.Lock()

    def __enter__(self):
        self.threads.acquire()
        fcntl.flock(self.lock_file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_):
        fcntl.flock(self.lock_file, fcntl.LOCK_UN)
        self.threads.release()

    def file(self, kind, name):
        return os.path.join(self.path, kind, name)

    def control(self):
        try:
            with open(os.path.join(self.path, "control.json")) as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def log(self, line):
        with open(os.path.join(self.path, "calls.log"), "a") as file:
            file.write(line + "\n")

    def fault(self, call):
        """What the test wants of this call; counts it."""
        for number, fault in enumerate(self.control().get("faults", [])):
            if fault["call"] not in (call, "*"):
                continue
            counter = self.file("facts", f".fault{number}")
            seen = int(open(counter).read()) if os.path.exists(counter) else 0
            with open(counter, "w") as file:
                file.write(str(seen + 1))
            skip = fault.get("skip", 0)
            if skip <= seen < skip + fault.get("times", 1):
                return fault["do"]
        return None

    def size(self, name):
        try:
            return os.stat(self.file("objects", name)).st_size
        except FileNotFoundError:
            return None

    def identity(self, name):
        try:
            found = os.stat(self.file("objects", name))
            return found.st_ino, found.st_mtime_ns
        except FileNotFoundError:
            return None

    def facts(self, name):
        try:
            with open(self.file("facts", name)) as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def set_facts(self, name, facts):
        with open(self.file("facts", name), "w") as file:
            json.dump(facts, file)

    def lease(self, name):
        self.set_facts(name, self.facts(name) | {"lease": time.time() + self.control().get("lease_ms", 0) / 1000})

    def is_leased(self, name):
        return self.facts(name).get("lease", 0) > time.time()

    def drop(self, name):
        for kind in ("objects", "facts"):
            try:
                os.remove(self.file(kind, name))
            except FileNotFoundError:
                pass

    def make_room(self, size):
        """Evicts whole groups, the oldest first; those of which a part is soft-pinned after all others. False: what is
        left is leased, or the store is too small."""
        capacity = self.control().get("capacity", 1 << 40)
        names = os.listdir(os.path.join(self.path, "objects"))
        used = sum(self.size(name) or 0 for name in names)
        used += sum(os.stat(entry).st_size for entry in os.scandir(os.path.join(self.path, "begun")))
        if used + size <= capacity:
            return True
        if size > capacity:
            return False
        groups = collections.defaultdict(list)
        for name in names:
            groups[self.facts(name).get("group", name)].append(name)
        def rank(group):
            age = max(os.stat(self.file("objects", name)).st_mtime_ns for name in group)
            return any(self.facts(name).get("is_soft_pinned") for name in group), age

        order = sorted(groups.values(), key=rank)
        for group in order:
            if used + size <= capacity:
                break
            if any(self.is_leased(name) for name in group):
                continue
            for name in group:
                used -= self.size(name) or 0
                self.drop(name)
        return used + size <= capacity


class MooncakeDistributedStore:
    def __init__(self):
        self.cluster = None
        self.is_closed = False
        self.memory = {}  # address -> size
        self.begun = {}  # name -> bytes written of it, or None
        self.of_thread = threading.local()  # fault: what the test wants of the call that runs

    # What every call begins with.

    def call(self, name, keys, refused=REFUSED):
        """None: go on. Else the codes to answer with."""
        if self.cluster is None or self.is_closed:
            die(f"{name}() without setup, or after close")
        with self.cluster as cluster:
            cluster.log(f"{name} {len(keys)}")
            control, fault = cluster.control(), cluster.fault(name)
        if fault:
            if fault.get("crash"):
                die("a crash that the test wants")
            if fault.get("hang"):
                threading.Event().wait()
            time.sleep(fault.get("seconds", 0))
            if "exit" in fault:
                os._exit(fault["exit"])
            if "raise" in fault:
                raise RuntimeError(fault["raise"])
            if "answer" in fault:
                return fault["answer"]
            if "code" in fault and "index" not in fault:
                return [fault["code"]] * len(keys)
        if control.get("is_down"):
            return [NO_MASTER] * len(keys)
        self.of_thread.fault = fault
        if len(set(map(type, keys)) - {str}):
            die(f"{name}(): keys that are no text")
        return None

    def with_fault(self, codes):
        fault = self.of_thread.fault
        if fault and "index" in fault and fault["index"] < len(codes):
            codes[fault["index"]] = fault["code"]
        return codes

    def check_memory(self, address, size):
        if not any(begin <= address and address + size <= begin + length for begin, length in self.memory.items()):
            die(f"{size} bytes at {address:#x} are not registered")

    # The client.

    def setup(self, local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices,
              master_server_addr):
        if self.cluster is not None:
            die("setup() twice")
        scheme, colon, path = metadata_server.partition(":")
        if scheme != "fake" or not colon or protocol != "tcp" or not local_hostname or not master_server_addr:
            return REFUSED
        if not all(isinstance(number, int) for number in (global_segment_size, local_buffer_size)) or rdma_devices:
            return REFUSED
        self.cluster = Cluster(path)
        self.cluster.log("setup")
        with self.cluster as cluster:
            fault = cluster.fault("setup")
        if fault and fault.get("hang"):
            threading.Event().wait()
        return fault["code"] if fault and "code" in fault else 0

    def close(self):
        if self.cluster is None or self.is_closed:
            die("close() without setup, or twice")
        self.cluster.log("close")
        self.is_closed = True
        return 0

    def register_buffer(self, buffer_ptr, size):
        if self.cluster is None:
            die("register_buffer() before setup()")
        with self.cluster as cluster:
            fault = cluster.fault("register_buffer")
        if fault:
            return fault["code"]
        overlaps = any(begin < buffer_ptr + size and buffer_ptr < begin + length
                       for begin, length in self.memory.items())
        if size <= 0 or overlaps:
            return REFUSED
        self.memory[buffer_ptr] = size
        return 0

    def batch_is_exist(self, keys):
        codes = self.call("batch_is_exist", keys)
        if codes is not None:
            return codes
        with self.cluster as cluster:
            codes = [int(cluster.size(key) is not None) for key in keys]
            for key, code in zip(keys, codes):
                if code:
                    cluster.lease(key)
        return self.with_fault(codes)

    def get_size(self, key):
        codes = self.call("get_size", [key])
        if codes is not None:
            return codes[0]
        with self.cluster as cluster:
            size = cluster.size(key)
        return NOT_FOUND if size is None else size

    def batch_get_into_multi_buffers(self, keys, all_buffer_ptrs, all_sizes, prefer_alloc_in_same_node=False):
        codes = self.call("batch_get_into_multi_buffers", keys)
        for pointers, sizes in zip(all_buffer_ptrs, all_sizes):
            for address, size in zip(pointers, sizes):
                self.check_memory(address, size)
                ctypes.memmove(address, random.randbytes(size), size)
        if codes is not None:
            return codes
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes):
            return [REFUSED] * len(keys)
        codes = [0] * len(keys)
        takes_long = (self.of_thread.fault or {}).get("until_removed", False)
        places = {key: i for i, key in enumerate(keys)}  # of a key that is there twice, one place is filled
        for i in random.sample(range(len(keys)), len(keys)):
            with self.cluster as cluster:
                size = cluster.size(keys[i])
                is_missing = NOT_READY if os.path.exists(cluster.file("begun", keys[i])) else NOT_FOUND
                identity = cluster.identity(keys[i])
                if size is not None:
                    cluster.lease(keys[i])
                    with open(cluster.file("objects", keys[i]), "rb") as file:
                        data = file.read()
            wanted = sum(all_sizes[i])
            codes[i] = is_missing if size is None else REFUSED if wanted < size else TRANSFER if wanted > size else size
            if codes[i] == size and places[keys[i]] == i and self.is_still(keys[i], identity, takes_long):
                for address, piece in zip(all_buffer_ptrs[i], all_sizes[i]):
                    ctypes.memmove(address, data[:piece], piece)
                    data = data[piece:]
        return self.with_fault(codes)

    def is_still(self, key, identity, takes_long):
        if takes_long:
            with self.cluster as cluster:
                cluster.log("waits_until_removed")
        while True:
            with self.cluster as cluster:
                if cluster.identity(key) != identity:
                    return False
            if not takes_long:
                return True
            time.sleep(0.001)

    # Sessions.

    def start_one(self, cluster, is_soft_pinned, key, size, group):
        if not key or size <= 0 or len(key) > NAME_LIMIT or "/" in key:
            return REFUSED
        path = cluster.file("begun", key)
        if os.path.exists(path):
            age = time.time() - os.stat(path).st_mtime
            if age * 1000 < cluster.control().get("discard_ms", 30_000):
                return EXISTS
            os.remove(path)
        if cluster.size(key) is not None:
            return EXISTS
        if not cluster.make_room(size):
            return NO_ROOM
        with open(path, "wb") as file:
            file.truncate(size)
        cluster.set_facts(key, {"group": group, "is_soft_pinned": is_soft_pinned})
        self.begun[key] = None
        return 0

    def batch_put_session_start(self, keys, sizes, config):
        codes = self.call("batch_put_session_start", keys)
        if codes is not None:
            return codes
        groups = config.group_ids if config.group_ids is not None else keys
        is_soft_pinned = config.soft_pin_action == SoftPinAction.ENABLE  # PRESERVE, of an object that is new: it is not
        if not len(keys) == len(sizes) == len(groups) or config.replica_num < 1:
            return [REFUSED] * len(keys)
        with self.cluster as cluster:
            fault = self.of_thread.fault or {}
            return [fault["code"] if fault.get("index") == i else self.start_one(cluster, is_soft_pinned, *one)
                    for i, one in enumerate(zip(keys, sizes, groups))]

    def batch_put_from_multi_buffer_ranges(self, keys, all_buffer_ptrs, all_sizes, all_dst_offsets):
        codes = self.call("batch_put_from_multi_buffer_ranges", keys)
        if codes is not None:
            return codes
        codes = [0] * len(keys)
        for i in random.sample(range(len(keys)), len(keys)):
            if keys[i] not in self.begun:
                codes[i] = REFUSED
                continue
            for address, size in zip(all_buffer_ptrs[i], all_sizes[i]):
                self.check_memory(address, size)
            pieces = [bytes_at(*one) for one in zip(all_buffer_ptrs[i], all_sizes[i])]
            with self.cluster as cluster, open(cluster.file("begun", keys[i]), "r+b") as file:
                for piece, offset in zip(pieces, all_dst_offsets[i]):
                    file.seek(offset)
                    file.write(piece)
            if pieces != [bytes_at(*one) for one in zip(all_buffer_ptrs[i], all_sizes[i])]:
                die("the memory of a put changed while it ran")
            codes[i] = sum(all_sizes[i])
            self.begun[keys[i]] = codes[i]
        return self.with_fault(codes)

    def batch_put_session_end(self, keys):
        codes = self.call("batch_put_session_end", keys)
        if codes is not None:
            return codes
        codes = []
        fault = self.of_thread.fault or {}
        with self.cluster as cluster:
            for i, key in enumerate(keys):
                if key not in self.begun:
                    codes.append(REFUSED)
                    continue
                path = cluster.file("begun", key)
                if self.begun.pop(key) != os.stat(path).st_size:
                    die("the end of a session whose object is not written whole")
                if fault.get("index") == i:
                    os.remove(path)
                    codes.append(fault["code"])
                    continue
                os.rename(path, cluster.file("objects", key))
                codes.append(0)
        return codes

    def batch_put_session_revoke(self, keys):
        codes = self.call("batch_put_session_revoke", keys)
        if codes is not None:
            return codes
        with self.cluster as cluster:
            for key in keys:
                if self.begun.pop(key, REFUSED) == REFUSED:
                    codes = (codes or []) + [REFUSED]
                    continue
                os.remove(cluster.file("begun", key))
                codes = (codes or []) + [0]
        return codes

    # Removal.

    def remove_one(self, cluster, key, force):
        if cluster.size(key) is None:
            return NOT_FOUND
        if not force and cluster.is_leased(key):
            return LEASED
        cluster.drop(key)
        return 0

    def batch_remove(self, keys, force=False):
        codes = self.call("batch_remove", keys)
        if codes is not None:
            return codes
        with self.cluster as cluster:
            return [self.remove_one(cluster, key, force) for key in keys]

    def remove_by_regex(self, regex_pattern, force=False):
        codes = self.call("remove_by_regex", [regex_pattern])
        if codes is not None:
            return codes[0]
        with self.cluster as cluster:
            names = os.listdir(os.path.join(cluster.path, "objects"))
            return sum(self.remove_one(cluster, name, force) == 0 for name in names if re.search(regex_pattern, name))
