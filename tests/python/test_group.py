#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention over a process group of torch.distributed, and over a communicator whose MPI is not the library's.

Run: python3 tests/python/test_group.py Torch    or: mpirun -n 3 python3 tests/python/test_group.py Mpi

Torch starts 1 to 4 processes over gloo, which run a scene of this file and print a line.
"""
import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import numpy

import tree_attn
from optional import package

torch, dist, MPI = map(package, ("torch", "torch.distributed", "mpi4py.MPI"))

HEADS, KV_HEADS, D, N = 8, 2, 32, 300


def drawn():
    rng = numpy.random.default_rng(71)
    return [rng.standard_normal(shape).astype("float32") for shape in ((KV_HEADS, N, D), (KV_HEADS, N, D), (1, HEADS, 3, D))]


def outputs(layer, convert):
    """A digest of steps of 3, 1 and 3 queries, of appends between them, and of combine(); and the positions that this rank holds."""
    k, v, q = map(convert, drawn())
    hashed = hashlib.sha256()
    for begin, end, l in ((0, 200, 3), (200, 201, 1), (201, N, 3)):
        layer.append(k[:, begin:end], v[:, begin:end])
        for x in layer.step(q[:, :, :l], causal=True):
            hashed.update(numpy.ascontiguousarray(x).tobytes())
    held = sum(layer.holds(i) for i in range(N))
    part = convert(numpy.full((1, HEADS, 1, D), layer._callbacks.group.rank if layer._callbacks else 0, "float32"))
    out, _ = layer.combine(part, convert(numpy.zeros((1, HEADS, 1), "float32")), by_heads=HEADS % layer._size == 0)
    assert abs(float(out.mean()) - (layer._size - 1) / 2) < 1e-6, out
    return hashed.hexdigest()[:16], held


def opened(group, **options):
    return tree_attn.Attention(group=group, heads=HEADS, kv_heads=KV_HEADS, head_dim=D, **options)


def scene_steps(group):
    """Digest and held positions, for messages through shared memory, by the group, and staged as for NCCL."""
    with opened(group) as layer:
        first = outputs(layer, torch.from_numpy)
    for staged in False, True:
        if staged:
            tree_attn._comm._torch_groups[group] = tree_attn._comm.TorchGroup(group, device=torch.device("cpu"))
        with opened(group, shared_memory=False) as layer:
            assert outputs(layer, torch.from_numpy) == first
    return "%s %d" % first


def scene_parts(group):
    """Two groups of the processes: ranks are those of the group."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    half, other = groups[dist.get_rank() % 2], groups[1 - dist.get_rank() % 2]
    try:
        opened(other)
    except ValueError as error:
        assert str(error) == "this process is not in the group", error
    else:
        raise AssertionError("a group of others")
    with opened(half) as layer:
        return "%s %d" % outputs(layer, torch.from_numpy)


def scene_refused(group):
    """A refusal of one rank is one of all, and the object lives on."""
    last = dist.get_rank() == dist.get_world_size() - 1
    lines = []
    q = torch.from_numpy(drawn()[2])
    for open_layer in (lambda: opened(group, threads=0 if last else 1), lambda: opened(group)):
        try:
            layer = open_layer()
            layer.step(q[0] if last else q)
        except ValueError as error:
            lines.append(str(error))
    if last:  # a process that is forked has not its messages
        child = os.fork()
        if child == 0:
            try:
                layer.step(q)
            except ValueError as error:
                layer.close()
                os._exit(0 if "that of another process" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    layer.step(q)
    return "; ".join(lines)


def scene_layers(group):
    """64 layers on one group share its messages, and the memory for them: a step of one at a time."""
    k, v, q = map(torch.from_numpy, drawn())
    layers = [opened(group) for _ in range(64)]
    assert len({id(layer._callbacks) for layer in layers}) == 1
    layers[0].start(q)
    try:
        layers[1].step(q)
    except ValueError as error:
        line = str(error)
    layers[0].finish()
    for layer in layers:
        layer.append(k, v)
        layer.step(q)
    mapped = [row.split() for row in open("/proc/self/maps") if "/tree_attn-" in row]
    n_bytes = sum(int(end, 16) - int(begin, 16) for begin, end in (row[0].split("-") for row in mapped))
    assert len(mapped) == 1 and 0 < n_bytes <= 16 << 20, mapped
    return line


def scene_closed(group):
    """A layer that one process has closed is refused on both, until the other has closed it too."""
    layer = opened(group)
    if dist.get_rank() == 1:
        layer.close()
    try:
        opened(group)
    except ValueError as error:
        line = str(error)
    layer.close()
    for _ in range(2):
        with opened(group) as layer:
            layer.step(torch.from_numpy(drawn()[2]))
    return line


def scene_abandoned(group):
    """An exception of one process in a with block: it says at once that the group is not used again, as the others do after their wait."""
    q = torch.from_numpy(drawn()[2])
    try:
        with opened(group, timeout=0.5) as layer:
            if dist.get_rank() == 1:
                raise LookupError
            layer.step(q)
    except (LookupError, tree_attn.TransportError):
        pass
    begin = time.monotonic()
    try:
        opened(group, timeout=20)
    except tree_attn.TransportError as error:
        assert time.monotonic() - begin < 5
        return str(error)


def scene_late(group):
    """Rank 0 is silent: the others say so, and nothing goes on over the group."""
    layer = opened(group, timeout=0.5)
    if dist.get_rank() == 0:
        time.sleep(3)
        return "silent"
    lines = []
    q = torch.from_numpy(drawn()[2])
    for call in (lambda: layer.step(q), lambda: layer.step(q), lambda: opened(group)):
        try:
            call()
        except tree_attn.TransportError as error:
            lines.append(str(error))
    return "; ".join(lines)


def scene_gone(group):
    """Rank 0 ends: what gloo says of it is the cause."""
    layer = opened(group, timeout=20)
    if dist.get_rank() == 0:
        print("gone", flush=True)
        os._exit(0)
    try:
        layer.step(torch.from_numpy(drawn()[2]))
    except tree_attn.TransportError as error:
        assert isinstance(error.__cause__, RuntimeError), repr(error.__cause__)
        return str(error)[:41]


def run_scene(name, scenes):
    """Runs a scene of a module in this process, which play() has started."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=int(os.environ["SIZE"]))
    line = scenes[f"scene_{name}"](dist.group.WORLD)
    print(line, flush=True)
    os._exit(0)  # a group that has lost a process cannot be closed


def play(name, size, script=__file__):
    """The line of every process of a scene of a script."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as all_closed:
        environment = {**os.environ, "STORE": str(pathlib.Path(folder) / "store"), "SIZE": str(size), "OMP_NUM_THREADS": "1"}
        processes = [all_closed.enter_context(subprocess.Popen([sys.executable, script, "--scene", name], text=True, stdout=subprocess.PIPE,
                                                               stderr=subprocess.PIPE, env={**environment, "RANK": str(rank)}))
                     for rank in range(size)]
        results = [each.communicate(timeout=600) for each in processes]
    for (out, err), each in zip(results, processes):
        assert each.returncode == 0 and out.count("\n") == 1, err
    return [out.strip() for out, _ in results]


@unittest.skipIf(torch is None, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def test_the_bits_are_those_of_one_rank_and_every_key_is_held_once(self):
        with tree_attn.Attention(heads=HEADS, kv_heads=KV_HEADS, head_dim=D) as alone:
            digest, _ = outputs(alone, torch.from_numpy)
        for size in (1, 2, 3, 4):
            lines = [line.split() for line in play("steps", size)]
            self.assertEqual({line[0] for line in lines}, {digest})
            self.assertEqual(sum(int(line[1]) for line in lines), N)
        lines = [line.split() for line in play("parts", 4)]
        self.assertEqual({line[0] for line in lines}, {digest})
        self.assertEqual(sum(int(line[1]) for line in lines), 2 * N)

    def test_one_refusal_is_that_of_all(self):
        self.assertEqual(set(play("refused", 3)), {"rank 2: threads is 0; at least 1 is needed; rank 2: q has 3 axes; expected 4"})

    def test_64_layers_on_8_ranks_share_their_messages_within_16_mib(self):
        self.assertEqual(set(play("layers", 8)), {"Decoder::step: a step of another object over these messages is under way"})

    def test_a_layer_that_one_process_has_closed_is_refused_on_all(self):
        self.assertEqual(set(play("closed", 2)), {"Attention: ranks 0 and 1 differ in messages that objects hold open (1 and 0)"})

    def test_a_group_that_timed_out_is_not_used_again(self):
        silent, line = play("late", 2)
        self.assertEqual(silent, "silent")
        self.assertRegex(line, "^rank 1 waited 0.5 s for .* and gave up; rank 1 has given up before, and its group is not used again: open "
                               "another object on a new group; a message of this group was late or has failed, so it is not used again: make a new group$")

    def test_a_group_that_one_process_has_given_up_is_not_used_again(self):
        self.assertEqual(set(play("abandoned", 2)), {"a message of this group was late or has failed, so it is not used again: make a new group"})

    def test_what_the_group_raises_is_the_cause(self):
        self.assertEqual(play("gone", 2), ["gone", "rank 1: a callback has failed: [/__w/pyto"[:41]])

    def test_one_source_of_ranks(self):
        with self.assertRaisesRegex(ValueError, "comm and group are both given"):
            tree_attn.Attention(object(), group=object(), heads=1, head_dim=1)


@unittest.skipIf(MPI is None, "mpi4py is not installed")
class Mpi(unittest.TestCase):
    def test_a_communicator_of_another_mpi_takes_the_callbacks_and_gives_the_bits(self):
        comm = MPI.COMM_WORLD
        with tree_attn.Attention(heads=HEADS, kv_heads=KV_HEADS, head_dim=D) as alone:
            expected, _ = outputs(alone, numpy.asarray)
        of_library = tree_attn._library.ta_mpi
        tree_attn._library.ta_mpi = lambda: b""  # as a library without MPI
        try:
            for _ in range(2):
                with tree_attn.Attention(comm, heads=HEADS, kv_heads=KV_HEADS, head_dim=D) as layer:
                    self.assertIsNotNone(layer._callbacks)
                    digest, held = outputs(layer, numpy.asarray)
                self.assertEqual(digest, expected)
                self.assertEqual(sum(comm.allgather(held)), N)
        finally:
            tree_attn._library.ta_mpi = of_library


if __name__ == "__main__":
    if sys.argv[1:2] == ["--scene"]:
        run_scene(sys.argv[2], globals())
    unittest.main()
