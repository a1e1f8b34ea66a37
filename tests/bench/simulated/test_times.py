#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulated times of every algorithm, compared with closed formulas on the paper's cluster (clusters.cpp).

Run: ./run simulate --test                         builds the simulated program first
     tests/bench/simulated/test_times.py     status 77 and one line if it was never built

Every rank holds one aligned subtree of 32768 keys of 16 heads of 128 elements in BF16. A message of S bytes takes latency +
S / bandwidth. Messages that leave or enter a GPU at the same time by the same link share it.
"""
import functools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import simulated

MPIRUN = pathlib.Path(__file__).with_name("mpirun")
BUILD = pathlib.Path(os.environ.get("TREE_ATTN_SIMULATED_BUILD") or ROOT / "build-simulated")

GPUS, KEYS, HEADS, DIM = 8, 32768, 16, 128  # GPUs of a node, keys of a rank
STATE, VECTOR, SCALAR = 4 * HEADS * (DIM + 2), 4 * HEADS * DIM, 4 * HEADS  # bytes of blocks in F32
SHARD = 4 * KEYS * HEADS * DIM  # bytes of keys and values in BF16
ENVELOPE = 16  # bytes that the simulator adds to a message
DECODE = SHARD / 3e6  # us at 3 TB/s


def inside(n_bytes):
    """Microseconds of a message between two GPUs of a node."""
    return 1.5 + (n_bytes + ENVELOPE) / 450e3


def between(n_bytes):
    """Microseconds of a message between two nodes."""
    return 3 + (n_bytes + ENVELOPE) / 50e3


def slower(p):
    """The slower of the links that p ranks use."""
    return inside if p <= GPUS else between


def levels(p):
    """Rounds of doubling inside a node and between nodes."""
    return int(math.log2(min(p, GPUS))), int(math.log2(max(p // GPUS, 1)))


def doubling(p, n_bytes):
    """An AllReduce by recursive doubling over all ranks."""
    up, across = levels(p)
    return up * inside(n_bytes) + across * between(n_bytes)


def leaders(p):
    """A tree to the leader of each node, doubling between leaders, a tree down with the output.

    Small messages are sent without waiting for the receiver. So a rank that hands the output to n others sends n messages at
    once, which share its link; on the longest path n falls by one in every round.
    """
    up, across = levels(p)
    down = up * 1.5 + up * (up + 1) / 2 * (VECTOR + SCALAR + ENVELOPE) / 450e3
    return up * inside(STATE) + across * between(STATE) + down


def round_of(n, n_bytes, us, message_us):
    """One round of n messages each way, us(n_bytes) on the way. They share the GPU's link and leave as soon as the link is free and
    the sender has spent its time on each; the receiver spends its own when all are there."""
    return us(n_bytes) + (n - 1) * max(message_us, us(n_bytes) - us(-ENVELOPE)) + n * message_us


def blocks(p, radix=4, state=STATE, message_us=0):
    """One round among the ranks of a node, then rounds that join up to `radix` blocks."""
    return round_of(min(p, GPUS) - 1, state, inside, message_us) + rails(p, radix, state, message_us)


def rails(p, radix, state, message_us=0):
    """The rounds between nodes."""
    time, n_nodes = 0, max(p // GPUS, 1)
    while n_nodes > 1:
        k = min(radix, n_nodes)
        time += round_of(k - 1, state, between, message_us)
        n_nodes = math.ceil(n_nodes / k)
    return time


def slices(p, batch, radix=4):
    """Each rank of a node gathers the states of an eighth of the rows, joins those with the other nodes, and sends the output."""
    part = batch / GPUS
    return (round_of(GPUS - 1, part * STATE, inside, 0) + rails(p, radix, part * STATE) +
            round_of(GPUS - 1, part * (VECTOR + SCALAR), inside, 0))


def gather(p):
    """Bruck: round i moves 2^i states. Some rank receives from another node in every round."""
    return sum(slower(p)(min(2**i, p - 2**i) * STATE) for i in range(math.ceil(math.log2(p))))


@functools.cache
def known():
    """The algorithms of the program that take any backend; a simulated cluster has no kernels."""
    return simulated.algorithms([MPIRUN, "h100", "1"])


# Algorithm -> microseconds after the decode of the rank's own shard.
TIMES = {
    "paper": lambda p: doubling(p, SCALAR) + doubling(p, VECTOR) + doubling(p, SCALAR),
    "packed": lambda p: doubling(p, SCALAR) + doubling(p, VECTOR + SCALAR),
    "fused": lambda p: doubling(p, STATE),
    "gather": gather,
    "leaders": leaders,
    "two-level": blocks,
    "ring-state": lambda p: (p - 1) * slower(p)(STATE),
    # A shard is decoded while the next one arrives, in 4 messages, which takes longer; the last one is decoded afterwards.
    "ring": lambda p: (p - 1) * slower(p)(SHARD + 3 * ENVELOPE),
}


def run(p, algorithms, *options, keys=None, cluster="h100"):
    """The report of the simulated program: {algorithm: run}."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.json")
        words = [MPIRUN, cluster, str(p), "--ranks-per-node", str(min(p, GPUS)), "--seq-len", str(keys or p * KEYS),
                 "--algorithms", ",".join(algorithms), *options, "--report", str(report)]
        if "two-level" in algorithms:
            words += ["--radix", "4"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"status {done.returncode}: {done.stderr[-2000:]}")
        return {each["algorithm"]: each for each in json.loads(report.read_text())["runs"]}


class Times(unittest.TestCase):
    def check(self, p, algorithms):
        for name, measured in run(p, [name for name in algorithms if name in TIMES]).items():
            with self.subTest(ranks=p, algorithm=name):
                self.assertAlmostEqual(measured["latency_us"]["median"], DECODE + TIMES[name](p), delta=0.01)
                for key in ("messages_per_step", "bytes_per_step", "bytes_between_nodes_per_step", "merge_steps"):
                    self.assertEqual(measured[key], measured["predicted"][key], key)
                self.assertTrue(measured["same_bits_on_all_ranks"])

    def test_every_formula_is_of_an_algorithm(self):
        self.assertLessEqual(TIMES.keys(), set(known()))

    def test_one_node(self):
        self.check(8, known())

    def test_eight_nodes(self):
        self.check(64, known())

    def test_sixteen_nodes(self):
        self.check(128, known())

    def test_the_other_clusters(self):
        # A pair on PCIe; nodes below one leaf switch of the fat tree; and nodes of two leaf switches, two cables further apart.
        message = STATE + ENVELOPE
        for cluster, p, us in (("rtx4090", 2, 10 + message / 25e3),
                               ("fat-tree", 64, 3 * inside(STATE) + 3 * (2.5 + message / 50e3)),
                               ("fat-tree", 256, 3 * inside(STATE) + 4 * (2.5 + message / 50e3) + 3 + message / 50e3)):
            with self.subTest(cluster=cluster, ranks=p):
                self.assertAlmostEqual(run(p, ["fused"], cluster=cluster)["fused"]["combine_us"]["median"], us, delta=0.01)

    def test_nodes_that_share_a_link(self):
        # Nodes of 64 processes: six rounds inside, then every rank sends its state over the link of its node; or only slices of rows.
        def combine(p, n_links):
            measured = run(p, ["two-level"], "--ranks-per-node", "64", "--node-radix", "2", "--links-per-node", str(n_links), keys=p * 4096,
                           cluster="processors")["two-level"]
            for key in ("messages_per_step", "bytes_between_nodes_per_step"):
                self.assertEqual(measured[key], measured["predicted"][key], key)
            return measured["combine_us"]["median"], measured["bytes_between_nodes_per_step"]

        message = STATE + ENVELOPE
        (own, own_bytes), (shared, shared_bytes) = combine(128, 0), combine(128, 1)
        self.assertAlmostEqual(own, 6 * (1 + message / 10e3) + 3 + 64 * message / 25e3, delta=0.01)
        self.assertLess(shared, own / 2)
        self.assertEqual(shared_bytes * 64, own_bytes)
        # As IV.1 says.
        self.assertAlmostEqual(combine(256, 0)[0], 78.0, delta=0.1)
        self.assertAlmostEqual(combine(256, 1)[0], 12.8, delta=0.1)

    def test_merges_take_time(self):
        p, us = 64, 0.25
        for name, n_merges in (("fused", 6), ("leaders", 6)):
            plain, slow = (run(p, [name], "--merge-us", str(each))[name]["latency_us"]["median"] for each in (0, us))
            self.assertAlmostEqual(slow - plain, n_merges * us, delta=0.01)

    def test_two_level_with_a_cost_per_message(self):
        for p in (8, 64, 128):
            with self.subTest(ranks=p):
                measured = run(p, ["two-level"], "--message-us", "0.3")["two-level"]
                self.assertAlmostEqual(measured["combine_us"]["median"], blocks(p, message_us=0.3), delta=0.01)

    def test_two_level_of_long_messages(self):
        # 64 sequences: 532 kB per state, above the 32 KiB from which rows are split over the ranks of a node.
        for p in (64, 128):
            with self.subTest(ranks=p):
                measured = run(p, ["two-level"], "--batch", "64")["two-level"]
                self.assertAlmostEqual(measured["combine_us"]["median"], slices(p, 64), delta=0.01)

    def test_dealt_leaves(self):
        # One subtree per rank also where shards are not aligned, here 40000 keys: 625 leaves.
        p, n_keys = 128, 5_120_000
        measured = run(p, ["two-level"], "--order", "dealt", keys=n_keys)["two-level"]
        self.assertAlmostEqual(measured["latency_us"]["median"], SHARD / KEYS * n_keys / p / 3e6 + blocks(p), delta=0.01)

    def test_the_order_of_merges_shows_in_the_bits(self):
        # Unaligned shards: algorithms that keep their bits agree, fused merges in another order.
        runs = run(8, ["two-level", "gather", "ring-state", "ring", "fused"], keys=100000)
        digests = {name: each["output_digest"] for name, each in runs.items()}
        self.assertEqual(len({digest for name, digest in digests.items() if name != "fused"}), 1)
        self.assertNotEqual(digests["fused"], digests["gather"])


if __name__ == "__main__":
    if shutil.which("smpirun") is None:
        print("skipped: no SimGrid (apt-get install libsimgrid-dev)")
        sys.exit(77)
    if not (BUILD / "tree_attn_simulated.so").exists():
        print(f"skipped: {BUILD.name}/ has no simulated program (./run simulate builds it)")
        sys.exit(77)
    # Sources may have changed since.
    subprocess.run(["cmake", "--build", BUILD, "--target", "tree_attn_simulated"], check=True, stdout=subprocess.DEVNULL)
    unittest.main()
