# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks over what the program has: a process group of torch.distributed, or a communicator of any mpi4py.

The library calls the functions of a ta_comm on the thread that called it. Each starts a message or waits for some; an exception is kept, and
the call of the library raises it.
"""
import ctypes
import datetime
import math
import time
import weakref

_TAG = 24084  # of messages of a step, apart from those of the program

_GATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))
_POST = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64))
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.c_double)


class Comm(ctypes.Structure):
    """ta_comm."""

    _fields_ = [("struct_size", ctypes.c_int64), ("rank", ctypes.c_int32), ("size", ctypes.c_int32), ("context", ctypes.c_void_p),
                ("all_gather", _GATHER), ("post_send", _POST), ("post_receive", _POST), ("wait", _WAIT)]


class Callbacks:
    """The functions of a ta_comm over a group, which starts messages and gives a function that waits for each.

    That function takes the seconds that it may wait, and says whether the message is complete.
    """

    def __init__(self, group):
        self.group, self.error, self._pending, self._last = group, None, {}, 0
        functions = _GATHER(self._all_gather), _POST(self._post_send), _POST(self._post_receive), _WAIT(self._wait)
        self.comm = Comm(ctypes.sizeof(Comm), group.rank, group.size, None, *functions)

    def _guarded(self, work):
        """0, or 1 for an exception, which is kept: nothing may pass through C."""
        try:
            work()
            return 0
        except BaseException as error:
            self.error = error
            self.group.is_lost = True
            return 1

    def _start(self, request, start):
        def work():
            self._last += 1
            self._pending[self._last] = start()
            request[0] = self._last
        return self._guarded(work)

    def _all_gather(self, _, mine, n, everyone, request):
        return self._start(request, lambda: self.group.all_gather(_memory(mine, n), _memory(everyone, n * self.group.size)))

    def _post_send(self, _, data, n, to, request):
        return self._start(request, lambda: self.group.send(_memory(data, n), to))

    def _post_receive(self, _, data, n, source, request):
        return self._start(request, lambda: self.group.receive(_memory(data, n), source))

    def _wait(self, _, n, requests, seconds):
        def work():
            for i in range(n):
                if requests[i] == 0:
                    continue
                if not self._pending[requests[i]](seconds):
                    self.group.is_lost = True  # the group has closed its connections, or may still deliver what was given up
                    return
                del self._pending[requests[i]]
                requests[i] = 0
        return self._guarded(work)


def _memory(address, n):
    """The bytes at an address, as a buffer."""
    return (ctypes.c_char * n).from_address(address)


class TorchGroup:
    """A process group of torch.distributed. Its messages are in memory of the host, or for NCCL on the GPU of this process."""

    def __init__(self, group, device=None):
        import torch
        import torch.distributed as dist
        self._torch, self._dist, self._group, self.is_lost = torch, dist, group, False
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not in the group")
        self._peers = [dist.get_global_rank(group, rank) for rank in range(self.size)]
        takes_host = "cpu:" in dist.get_backend_config(group)
        self._device = device if device is not None or takes_host else torch.device("cuda", torch.cuda.current_device())
        self._posted = []  # messages on a device, which start together

    def _bytes(self, memory):
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def all_gather(self, mine, everyone):
        mine, everyone = self._bytes(mine), self._bytes(everyone)
        if self._device is None:
            return self._waiter(self._dist.all_gather_into_tensor(everyone, mine, group=self._group, async_op=True))
        staged = self._torch.empty_like(everyone, device=self._device)
        wait = self._waiter(self._dist.all_gather_into_tensor(staged, mine.to(self._device), group=self._group, async_op=True))
        return lambda seconds: wait(seconds) and (everyone.copy_(staged), True)[1]

    def send(self, data, to):
        if self._device is None:
            return self._waiter(self._dist.isend(self._bytes(data), self._peers[to], group=self._group, tag=_TAG))
        return self._post(self._dist.isend, self._bytes(data).to(self._device), to)

    def receive(self, data, source):
        data = self._bytes(data)
        if self._device is None:
            return self._waiter(self._dist.irecv(data, self._peers[source], group=self._group, tag=_TAG))
        staged = self._torch.empty_like(data, device=self._device)
        wait = self._post(self._dist.irecv, staged, source)
        return lambda seconds: wait(seconds) and (data.copy_(staged), True)[1]

    def _post(self, operation, staged, peer):
        """NCCL matches messages that start together: the first wait starts all."""
        works = []
        self._posted.append((self._dist.P2POp(operation, staged, self._peers[peer], group=self._group, tag=_TAG), works))

        def wait(seconds):
            if self._posted:
                started = self._dist.batch_isend_irecv([operation for operation, _ in self._posted])
                for i, (_, of_message) in enumerate(self._posted):  # one work for all, or one for each
                    of_message.append(started[i if len(started) == len(self._posted) else 0])
                self._posted = []
            return self._waiter(works[0])(seconds)
        return wait

    @staticmethod
    def _waiter(work):
        def wait(seconds):
            begin = time.monotonic()
            try:
                work.wait() if math.isinf(seconds) else work.wait(datetime.timedelta(seconds=seconds))
            except RuntimeError:
                if time.monotonic() - begin < 0.99 * seconds:
                    raise
                return False
            return True
        return wait


class MpiGroup:
    """A communicator of mpi4py, which is duplicated once, over any MPI: the library needs none."""

    def __init__(self, comm):
        from mpi4py import MPI
        self._mpi, self.is_lost, self.rank, self.size = MPI, False, comm.Get_rank(), comm.Get_size()
        self._comm = comm.Dup()

    def all_gather(self, mine, everyone):
        return self._waiter(self._comm.Iallgather([mine, self._mpi.BYTE], [everyone, self._mpi.BYTE]))

    def send(self, data, to):
        return self._waiter(self._comm.Isend([data, self._mpi.BYTE], to, _TAG % 32768))

    def receive(self, data, source):
        return self._waiter(self._comm.Irecv([data, self._mpi.BYTE], source, _TAG % 32768))

    @staticmethod
    def _waiter(request):
        def wait(seconds):
            if request.Test():
                return True
            begin = time.monotonic()
            while not request.Test():
                if time.monotonic() - begin > seconds:
                    return False
                time.sleep(0)  # ranks may outnumber cores
            return True
        return wait


def callbacks_of(carrier):
    """The Callbacks of a TorchGroup or MpiGroup, the same for all objects over it, which therefore share its messages."""
    if not hasattr(carrier, "callbacks"):
        carrier.callbacks = Callbacks(carrier)
    return carrier.callbacks


_torch_groups = weakref.WeakKeyDictionary()
_keyval = None


def group_of(comm, group):
    """The TorchGroup or MpiGroup of what is given, one for all objects over it, so that all know when it has given up."""
    global _keyval
    if group is not None:
        import torch.distributed as dist
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError("this process is not in the group")
        if group not in _torch_groups:
            _torch_groups[group] = TorchGroup(group)
        return _torch_groups[group]
    if _keyval is None:
        _keyval = type(comm).Create_keyval()
    found = comm.Get_attr(_keyval)
    if found is None:
        found = MpiGroup(comm)
        comm.Set_attr(_keyval, found)
    return found
