#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Numbers in sentences of the book are those of the records, tables and formulas that they come from."""
import fnmatch
import json
import math
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "tools"), str(ROOT / "tests" / "bench" / "time_ladder")]
import kernel_tables
import network
import race
import report
import simulated


def text(name):
    """A file with its lines joined, without the marks of comments."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return " ".join(" ".join(re.sub(r"^\s*///? ?", "", line) for line in lines).split())


class Statements(unittest.TestCase):
    def says(self, name, *sentences):
        for sentence in sentences:
            self.assertIn(sentence, text(name), name)


class Ladder(Statements):
    """The card's record of the present steps, and docs/time_ladder.json, the ladder of ten steps."""

    LINES = {(line["shape"].removeprefix("BF16, ").replace(" heads", "").removesuffix(" keys"), line["step"]): line for line in kernel_tables.RECORD["lines"] if "graph_seconds" in line}

    def us(self, shape, step):
        return 1e6 * self.LINES[shape, step]["graph_seconds"]

    def read(self, shape):
        return 1e6 * self.LINES[shape, "naive"]["read_seconds"]

    def test_first_steps(self):
        lines = [kernel_tables.recorded(step, "8k", kernel_tables.CARD)["16/16"] for step in ("naive", "fused")]
        (naive, fused), read = (1e6 * line["graph_seconds"] for line in lines), 1e6 * lines[0]["read_seconds"]
        times = f"{fused / naive:.1f} times as long"
        self.says("docs/III.1-kernels.md", f"that kernel takes {read:.1f} µs for 8k keys of 16 heads", f"{naive / 1000:.2f} ms, {naive / read:.0f} times the read",
                  f"{fused / 1000:.2f} ms, **{times} as rung 1**. A warp takes {fused / 8192:.2f} µs per key",
                  f"both kernels of that rung take {naive / 8192:.2f} µs per key")
        for name in ("docs/III.1-kernels.md", "gpu/ladder/03_vectors.cu"):
            self.says(name, f"where rung 2 takes {8 * fused / 8192:.1f}: 2 ms")
        for name in ("docs/IV.8-learnt.md", "docs/ten-minutes.md"):
            self.says(name, times)

    def test_heads_state_figures_of_their_own_form_only(self):
        for path in sorted((ROOT / "gpu" / "ladder").glob("0[1-5]_*.cu")):
            head = text(f"gpu/ladder/{path.name}").split("#include")[0]
            with self.subTest(path.name):
                self.assertRegex(head, r"Floor: .* us .*on an H200\. Prediction: ")
                us = 1e6 * kernel_tables.measured_on_card(re.search(r'\.name = "(\w+)"', path.read_text(encoding="utf-8"))[1])["graph_seconds"]
                self.assertIn(f": {us / 1000:.2f} ms." if us > 1000 else f": {us:.0f} us.", " ".join(head.split("Measured")[1].split()))

    def test_every_card_has_a_record_of_its_own(self):
        files = {report.file_of_card(device) for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA GB200")}
        self.assertEqual(files, {"h200.json", "h100.json", "a100.json", "gb200.json"})
        for path in (ROOT / "docs" / "cards").iterdir():
            self.assertEqual(path.name, report.file_of_card(json.loads(path.read_text(encoding="utf-8"))["device"]))
        self.says("docs/III.3-library.md", f"ran on an {kernel_tables.CARD['device']}, and `docs/cards/{report.file_of_card(kernel_tables.CARD['device'])}`")

    def test_every_floor_is_of_the_shape_that_was_measured(self):
        of_step = {step[1]: step for step in kernel_tables.steps()}
        for name, heads, dtype in (("fused", (16, 16), "BF16"), ("vectors", (16, 16), "F32"), ("split", (16, 16), "F32"), ("copies", (16, 16), "F32"), ("tensor", (16, 16), "BF16")):
            line = kernel_tables.measured_on_card(name, *heads)
            self.assertTrue(line["shape"].startswith(dtype), name)
            self.assertAlmostEqual(kernel_tables.floor(of_step[name], line) * kernel_tables.RATE / line["bytes"], 1, delta=1e-9)
            row, = [row for row in kernel_tables.ladder() if f" {name} |" in row]
            self.assertIn(f"| {dtype} | {kernel_tables.micro(line['bytes'] / kernel_tables.RATE).replace(' ', '&nbsp;')} | {kernel_tables.micro(line['graph_seconds'])} | {line['read_seconds'] / line['graph_seconds']:.2g} |", row)

    def test_why_rung_6_took_longer(self):
        """A fixed time and a rate, of 8k and 64k keys."""
        def fixed_and_rate(step, dtype):
            few, many = (kernel_tables.on_card(f"{dtype}, 16/16 heads, {keys} keys", step) for keys in ("8k", "64k"))
            rate = (many["bytes"] - few["bytes"]) / (many["graph_seconds"] - few["graph_seconds"])
            return 1e6 * (few["graph_seconds"] - few["bytes"] / rate), rate / 1e12, few["n_splits"]
        (fixed, rate, n_splits), (before, faster, _) = fixed_and_rate("tensor", "BF16"), fixed_and_rate("copies", "F32")
        self.says("docs/III.1-kernels.md", f"Its times for 16 heads on 16 are {fixed:.0f} µs plus the bytes at {rate:.2f} TB/s, those of rung 5 {before:.0f} µs plus the bytes at {faster:.1f} TB/s",
                  f"Each of {n_splits} joins takes {fixed / n_splits:.1f} µs")

    def test_the_end_beside_a_time_is_of_the_kernel_that_took_it(self):
        """At 512 keys that library merged in clusters, and equal runs, which have stamps too, ended later."""
        ends = {line["step"]: f"{1e6 * line['end_seconds']:.1f} µs" for line in kernel_tables.CARD["stamps"] if line["shape"] == "BF16, 16/16 heads, 512 keys"}
        row, = [row for row in kernel_tables.card() if row.startswith("| BF16, 16/16 heads, 512 keys |")]
        self.assertIn(f" {ends[kernel_tables.CARD['library']]} |", row)
        self.assertNotIn(f" {ends['equal-runs']} |", row)

    def test_one_card(self):
        end = {line["shape"]: 1e6 * line["end_seconds"] for line in kernel_tables.CARD["stamps"]}
        one, four = end["BF16, 16/16 heads, 8k keys"], end["BF16, 32/8 heads, 8k keys"]
        walk, = [line for line in kernel_tables.CARD["stamps"] if line["shape"] == "BF16, 16/16 heads, 64k keys"]
        later = 1e6 * (walk["kernel_seconds"] - walk["end_seconds"] - walk["walk_seconds"])
        self.says("docs/III.3-library.md", f"two joins take {one:.1f} µs with one query per head, and {four:.1f} µs with four", f"after {1e6 * walk['walk_seconds']:.0f} µs, and the last one {later:.0f} µs later")
        ends = [(line["shape"].split(", ")[2], 1e6 * line["end_seconds"]) for line in kernel_tables.CARD["stamps"] if line["step"] == "equal-runs" and re.fullmatch(r"BF16, (?:16/16|32/8) heads, \d+k? keys", line["shape"])]
        (fewest, least), (most_keys, most) = min(ends, key=lambda end: end[1]), max(ends, key=lambda end: end[1])
        self.says("docs/IV.8-learnt.md", f"took {least:.1f} µs with {fewest} and up to {most:.1f} µs with {most_keys.removesuffix(' keys')}")
        resident = {line["n_blocks"]: line["n_clusters"] for line in kernel_tables.CARD["clusters"] if line["shared_kib"] == 220}
        self.says("docs/IV.8-learnt.md", f"holds {resident[8]} clusters of eight blocks that take nearly all of the shared memory, and {resident[16]} of sixteen")
        copies = {(line["way"], line["n_blocks"]): f"{line['read_seconds'] / line['graph_seconds']:.2f}" for line in kernel_tables.CARD["copies"]}
        self.assertEqual((copies["bulk", 132], copies["tensor map", 128]), (copies["cp.async", 132], copies["tensor map", 132]))
        self.says("docs/III.3-library.md", f"{copies['bulk', 132]} of the read on all 132 multiprocessors and {copies['bulk', 128]} to {copies['cp.async', 128]} on 128",
                  f"use, reach {copies['tensor map', 132]} on either")
        self.says("docs/IV.8-learnt.md", f"reach {copies['tensor map', 132]} of the rate of a read", f"by bulk copies, reach {copies['bulk', 132]}, and on 128 of 132 multiprocessors {copies['bulk', 128]}")
        self.says("docs/III.3-library.md", f"PyTorch {'.'.join(kernel_tables.CARD['versions']['torch'].split('.')[:2])} ran on the same machine")
        exchange = [line for line in kernel_tables.CARD["exchange"] if line.get("parts") == 2 and "sent_us" in line]
        self.says("docs/III.4-one-launch.md", f"was there {exchange[0]['last_us']:.1f} µs after", f"all were merged after {exchange[0]['merged_us']:.1f} µs")
        compared = [line for line in kernel_tables.CARD["exchange"] if "before_wrap" in line and line.get("windows") != "host"]
        self.assertEqual({(line["parts"], line["steps"], line["wrong"]) for line in compared}, {(n, 2000, 0) for n in (2, 4, 8)})

    def test_the_library_kernel_of_that_record(self):
        part = [self.LINES[f"{heads}, 64k", "equal-runs"] for heads in ("16/16", "32/8")]
        one, four = (line["read_seconds"] / line["graph_seconds"] for line in part)
        over = [self.us(f"{heads}, 8k", "equal-runs") - self.read(f"{heads}, 8k") for heads in ("16/16", "32/8")]
        self.says("docs/IV.8-learnt.md", f"reached {one:.2f} of the read rate with one query per key/value head, and {four:.2f} with four",
                  f"took {over[0]:.0f} µs longer than the read with one query per head, and {over[1]:.0f} µs longer with four")

    def test_clusters_and_second_launches(self):
        slower = [self.us(f"16/16, {keys}", "cluster") / self.us(f"16/16, {keys}", "bulk") for keys in ("8k", "64k", "1M")]
        self.says("docs/IV.8-learnt.md", f"took {min(slower):.1f} to {max(slower):.1f} times as long")
        more = [self.us(f"{heads}, 8k", "split") - self.us(f"{heads}, 8k", "last-block") for heads in ("16/16", "32/8")]
        self.says("docs/IV.8-learnt.md", f"joined the splits took {min(more):.1f} to {max(more):.1f} µs more, at 8k keys and in a graph")

    def test_bytes_in_flight(self):
        rate = kernel_tables.RATE
        flight = [rate * seconds for seconds in (0.7e-6, 1.0e-6)]
        self.says("docs/III.1-kernels.md", f"divided by {rate / 1e12:.2f} TB/s, the highest rate", f"{flight[0] / 1e6:.1f} to {flight[1] / 1e6:.1f} MB for the device, or "
                  f"{flight[0] / 132e3:.0f} to {flight[1] / 132e3:.0f} kB for each of 132")

    def test_instructions(self):
        before = kernel_tables.PER_8_KIB_BEFORE
        bf16, f32 = before["SubWarp<BFloat16, 16, 1>"], before["ScalarWarp<float, 128>"]
        # A lane of 32 copies 8 KiB by 16 copies of 16 bytes.
        self.assertEqual([f"{share * n / 16:.0f}" for share, n in ((0.38, bf16), (0.57, f32))], ["27", "27"])
        self.says("docs/IV.8-learnt.md", f"Of the {bf16} instructions", "27 instructions for every copy of 16 bytes", f"57 % of {f32}, again 27")
        walks = json.loads((ROOT / "docs" / "kernel_instructions.json").read_text(encoding="utf-8"))["walks"]
        now = {(walk["architecture"], walk["worker"], walk["rows"]): walk for walk in walks if walk["kernel"] == "decode_units"}
        of_leaf = now["sm_90a", "ScalarWarp<float, 128>", "bulk"]
        self.says("docs/IV.8-learnt.md", f"has {of_leaf['per_8_kib']} instructions per 8 KiB where it had {f32}")
        per_cycle = kernel_tables.RATE / kernel_tables.MULTIPROCESSORS / kernel_tables.CYCLES
        slots = kernel_tables.SCHEDULERS * 2 * 64 * 128 * 4 / per_cycle
        self.says("docs/III.1-kernels.md", f"At {kernel_tables.CYCLES / 1e9:.2f} GHz, the clock of the data sheet, a multiprocessor receives about {per_cycle:.0f} bytes per clock")
        portable, tile = now["sm_90a", "ScalarWarp<BFloat16, 128>", "bulk"]["leaf"], now["sm_90a", "MmaTile<BFloat16, 128, 8>", "tensor map"]["leaf"]
        self.says("docs/III.3-library.md", f"a leaf takes {of_leaf['leaf']} on scalar cores, of about {round(slots, -2):.0f} that a multiprocessor can issue while it arrives, and with `--portable` in BF16 {portable} of {round(slots / 2, -2):.0f}",
                  f"Tensor cores take {tile} for up to eight queries",
                  f"four that share keys take {4 * portable / (slots / 2):.1f} times the instructions that memory leaves time for, in F32 {4 * of_leaf['leaf'] / slots:.1f} times")


class Measured(Statements):
    """The tables of docs/measured.md that ./run bench writes."""

    ROWS = {tuple(cell.strip() for cell in line.strip("|").split("|"))[:-1]: line.strip("|").split("|")[-1].strip()
            for line in (ROOT / "docs" / "measured.md").read_text(encoding="utf-8").split("measurements: begin")[1].splitlines() if line.startswith("| ")}

    def ratio(self, *what):
        return float(self.ROWS[what])

    def test_what_was_learnt(self):
        """Words for ratios, in ranges that another run of the benchmark stays in."""
        finish = "finish of a state of 128 components"
        self.says("docs/IV.8-learnt.md", "is more than twice as fast as checking each", "with one of 64 bits `finish()` is slower again", "about one and a half times as fast as in two passes",
                  "three AllReduces take 1.5 times as long as one", "the combine of 8 KB takes up to one and a half times as long as `MPI_Allgather`", "less than two thirds of its time when it copies through shared memory")
        self.assertGreater(self.ratio(finish, "speed of looking at each"), 2)
        self.assertGreater(self.ratio(finish, "speed of counting in 64 bits"), 1.1)
        self.assertAlmostEqual(self.ratio("merge and finish of 128 states in one pass", "speed of two passes"), 1.5, delta=0.2)
        self.assertAlmostEqual(self.ratio("three AllReduces, 8 ranks", "time of one"), 1.5, delta=0.2)
        of_allgather = {what[0]: float(what[1].split(" / ")[0]) for what in self.ROWS if len(what) == 3 and re.fullmatch(r"[\d.]+ / [\d.]+", what[1])}
        self.assertTrue(1 < of_allgather["two-level, 2 ranks"] < 1.5)
        self.assertLess(of_allgather["two-level in shared memory, 2 ranks"], 2 / 3)


class Predicted(Statements):
    """The model and the simulated cluster."""

    ROWS = simulated.read()["rows"]
    CASES = [case for case in json.loads((ROOT / "docs" / "my_cluster.json").read_text(encoding="utf-8"))["cases"]
             if (case["problem"]["heads"], case["problem"]["kvHeads"], case["problem"]["perNode"], case["problem"]["batch"], case["cluster"]["overhead"]) == (16, 16, 8, 1, 0)
             and case["problem"]["headDim"] == 128 and case["problem"]["radix"] == 0 and case["cluster"]["inside"] == {"latency": 1.5, "bytesPerUs": 450000}]

    def us(self, ranks, keys, name, dealt=False):
        return next(case["us"][name] for case in self.CASES if case["problem"] | {"ranks": ranks, "keys": keys, "dealt": dealt} == case["problem"])

    def test_three_collectives(self):
        combine = {row["algorithm"]: row["combine_us"] for row in self.ROWS
                   if (row["experiment"], row["cluster"], row["ranks"], row["batch"], row["message_us"]) == ("schedules", "h100", 128, 1, 0)}
        self.says("docs/IV.8-learnt.md", f"Alg. 3 communicates for {combine['paper']:.1f} µs, a single AllReduce of states for {combine['fused']:.1f} µs, and `two-level` for {combine['two-level']:.1f} µs")
        self.says("docs/IV.3-cost.md", f"which is {combine['fused']:.1f} µs for 128 GPUs")

    def test_model_and_simulation(self):
        over = {}
        for row in self.ROWS:
            if row["experiment"] == "fig_3" and row["ranks"] in (8, 64, 128) and row["keys"] in (80_000, 640_000, 5_120_000):
                over.setdefault(row["algorithm"], []).append(row["latency_us"] / self.us(row["ranks"], row["keys"], row["algorithm"], row["order"] == "dealt") - 1)
        self.assertGreater(len(over["two-level"]), 12)
        self.assertLess(max(map(abs, over["ring"] + over["paper"])), 1.5e-3)
        self.says("docs/IV.5-does-it-pay.md", "For `ring` and `paper` model and simulation agree to 0.1 %", f"takes up to {100 * max(over['two-level']):.0f} % longer than the model says")

    def test_times_that_others_measured(self):
        page, words = (ROOT / "docs" / "IV.4-network.md").read_text(encoding="utf-8"), ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
        rows = [row.split(" | ") for row in re.search(r"table: begin others\n(.*?)table: end", page, re.DOTALL)[1].splitlines() if "https://" in row]
        names = re.findall(r'Exchange\{"(.*?)"', (ROOT / "docs" / "tools" / "schedules.cpp").read_text(encoding="utf-8"))
        self.assertEqual({*names, "step"}, {name for name, *_ in network.OTHERS} | {"out 8"})
        off = 0
        for row, (_, _, _, least, most, *_) in zip(rows, network.OTHERS, strict=True):
            us = float(row[2].split()[0]) * (1000 if row[2].endswith("ms") else 1)
            off += not least / 2 <= us <= 2 * most
            self.assertEqual(not least / 2 <= us <= 2 * most, row[3].startswith("**"))
            self.assertAlmostEqual(float(row[3].strip("*").split()[0]), us / most, delta=0.01)
        self.says("docs/IV.4-network.md", f"Of {words[len(rows) - 1]} ratios {words[off - 1]} are off by more than 2", "the 1.85 ms of a step instead of 5.0")

    def test_does_it_pay(self):
        of = {ranks: {name: self.us(ranks, 5_120_000, name) for name in ("ring", "paper")} for ranks in (8, 64, 128)}
        shard = 5_120_000 / 128 * 8192
        needed = of[128]["ring"] / 8 - of[128]["paper"]
        eight_links = of[128]["ring"] / 8e3  # ms, if the link between nodes were eight times as wide: latencies and reading are 1 % of it
        self.says("docs/IV.5-does-it-pay.md", f"a shard has {shard / 1e6:.0f} MB. Reading it takes {shard / 3e6:.0f} µs", f"over a 50 GB/s link takes {shard / 5e7:.1f} ms",
                  f"the ring takes {of[8]['ring'] / of[8]['paper']:.0f} times as long as Alg. 3",
                  f"On 128 GPUs that is {needed / 1000:.0f} ms, six hundred times the {of[128]['paper']:.0f} µs of the schedule",
                  f"a hop would take {shard / 4e8:.1f} ms instead of {shard / 5e7:.1f} ms, the ring 105 ms and the overhead of the tree program 13 ms")
        self.assertAlmostEqual(eight_links, 105, delta=1)
        self.assertAlmostEqual(eight_links / 8 - of[128]["paper"] / 1000, 13, delta=0.5)
        self.assertGreater(min(of[ranks]["ring"] / of[ranks]["paper"] for ranks in (64, 128)), 2000)
        self.assertAlmostEqual(needed / of[128]["paper"], 600, delta=60)
        one, many = (self.us(ranks, 80_000, "two-level", dealt=True) for ranks in (8, 128))
        alone = many - 80_000 / 128 * 8192 / 3e6
        self.says("docs/IV.5-does-it-pay.md", f"falls from {one:.0f} µs to {many:.0f} µs, of which {alone:.0f} µs are communication", "Sixteen times the GPUs make a step three times as fast")
        self.assertAlmostEqual(one / many, 3, delta=0.4)

    def test_tables_1_and_2(self):
        found = network.measured_times()
        h100, mi300x, cards = (found[key] for key in (("Table 1", "H100 NVLink"), ("Table 1", "MI300X"), ("Table 2", "RTX 4090 PCIe")))
        ratios = [ring / tree for of in found.values() for (tree, _), (ring, _) in of.values()]
        more = [ring - tree for (tree, _), (ring, _) in h100.values()]
        amd = [ring / tree for (tree, _), (ring, _) in mi300x.values()]
        seconds = [f"{min(tree for (tree, _), _ in of.values()):.1f} to {max(tree for (tree, _), _ in of.values()):.1f} s" for of in (h100, cards)]
        least = [network.prefill_seconds("table_2", keys) for keys in cards]
        self.says("docs/IV.5-does-it-pay.md", f"Their factors lie between {min(ratios):.1f} and {max(ratios):.1f}")
        self.says("notebooks_cpp/13_the_papers_experiments.cpp", f"it takes {min(more):.1f} to {max(more):.1f} s longer than the tree",
                  f"Their ring takes {min(amd):.1f} to {max(amd):.1f} times as long", *(f"ms of {words}" for words in seconds),
                  f"the prefill of 256k keys alone takes {network.prefill_seconds('table_1', 256_000):.1f} s", f"the prefill at the peak rate {min(least):.1f} to {max(least):.1f} s")
        self.says("docs/IV.6-model.md", f"where the paper's programs differ by {max(more):.1f} s")


class Arithmetic(Statements):
    def test_the_papers_example(self):
        n_bytes = 2 * 80_000 * 2048 * 2
        read, move = n_bytes / 3.35e12, n_bytes / 450e9
        for name in ("docs/IV.3-cost.md", "docs/errata.md"):
            self.says(name, f"{n_bytes / 1e6:.0f} MB", f"{1e6 * read:.0f} µs", f"{1e3 * move:.2f} ms")
        self.says("docs/IV.3-cost.md", f"Computing is {move / read:.0f} times faster than moving")
        self.says("docs/IV.8-learnt.md", f"moving a shard takes {move / read:.0f} times as long as reading it")

    def test_ring_and_tree_in_bytes(self):
        facts = race.read_facts()
        rows = {row["algorithm"]: row for row in facts["schedules"]}
        (_, ring, _), (_, tree, _) = race.sent(rows["ring"]), race.sent(rows["two-level"])
        ranks, state = rows["ring"]["ranks"], 4 * facts["heads"] * (2 + facts["head_dim"])
        # A factor of two for F32, and the states that a rank sends against those of eq. (12).
        states, by_paper = tree / ranks / state, 2 * (ranks - 1) / ranks
        papers = rows["ring"]["keys"] / (1 + 2 / facts["head_dim"])
        self.assertAlmostEqual(papers / 2 * by_paper / states / (ring / tree), 1, delta=1e-12)
        self.says("docs/ten-minutes.md", f"our ring sends {race.bytes_text(ring)} in a step, and `two-level` {race.bytes_text(tree)}", f"a factor of {ring / tree:.0f} and not of {papers:.0f}",
                  f"each rank sends {['no', 'one', 'two', 'three', 'four'][round(states)]} of them where the paper's AllReduce counts {by_paper:.2f}")

    def test_where_an_exponential_overflows(self):
        double, single = math.log(sys.float_info.max), math.log(2) * 128 + math.log1p(-(2.0**-24))
        for name in ("docs/I.1-stream.md", "docs/I.6-safe-softmax.md"):
            self.assertEqual(set(re.findall(r"\b(?:709|88)\.\d+", text(name))), {f"{double:.2f}", f"{single:.2f}"}, name)
        self.says("notebooks_cpp/14_attention_in_one_pass.cpp", f"fails above {double:.2f}", f"in F32 above {single:.2f}")

    def test_a_limit_for_invented_answers(self):
        measured = json.loads((ROOT / "docs" / "recall.json").read_text(encoding="utf-8"))
        rows = {(row["characters"], row["known"]): row for row in measured["confidence"]}
        limit = float(re.search(r"kSureWeight = ([\d.]+);", (ROOT / "distributed/program/report.hpp").read_text(encoding="utf-8"))[1])
        sure = {n: row["asked"] - row["below"][str(limit)] for (n, known), row in rows.items() if known}
        unsure = {n: row["below"][str(limit)] for (n, known), row in rows.items() if not known}
        longest = max(sure)
        self.says("docs/IV.6-model.md", f"Below a weight of {limit} the line ends with *not sure*. At 65536 characters this limit separates most answers that are in the text from most that are invented: "
                  f"{sure[65536]} of the former reach it, and {unsure[65536]} of the latter do not",
                  f"at {longest} characters only {sure[longest]} right answers reach the limit, and {unsure[longest]} of {rows[longest, False]['asked']} invented ones do not")


class Code(Statements):
    """Numbers of lines, bytes, warps and functions are those of the sources."""

    def test_warps_of_a_block(self):
        """They are those of the plans in tests/gpu/ladder/test_bits.cpp."""
        sizes = re.findall(r"size_on\((\w+), DType::(F32|BF16), (?:1|4), (?:d|64)\) == std::pair\{(\d), ", (ROOT / "tests/gpu/ladder/test_bits.cpp").read_text(encoding="utf-8"))
        warps = {(device, dtype): ("", "one", "two", "three", "four", "five", "six", "seven", "eight")[int(n)] for device, dtype, n in sizes}
        (h200, a100, small), (h200_tensor, a100_tensor, small_tensor) = ([warps[device, dtype] for device in ("h200", "a100", "consumer")] for dtype in ("F32", "BF16"))
        self.says("docs/III.3-library.md", f"an H200 gets blocks of {h200} warps, an A100 of {a100}, a consumer device of {small}; on tensor cores {h200_tensor}, {a100_tensor} and {small_tensor}")

    def test_thread_groups(self):
        pipelines = (ROOT / "gpu/engine/pipelines.cuh").read_text(encoding="utf-8")
        wide, latent = (int(re.search(rf"class {name} .*?bool takes\(.*?params\.group > (\d+)", pipelines, re.DOTALL)[1]) + 1 for name in ("MmaPipeline", "LatentPipeline"))
        self.says("docs/III.3-library.md", f"| up to 128; of F8_E4M3 65 to 128 | from {wide} on: `wgmma` |", f"| more than 256, latent | from {latent} on: `wgmma` |")

    def test_sizes(self):
        lines = {name: round(len((ROOT / "gpu" / "ladder" / name).read_text(encoding="utf-8").splitlines()), -1) for name in ("04_split.cu", "06_tensor.cu", "07_units.cu")}
        self.says("docs/III.1-kernels.md", *(f"in one file of {n} lines" for n in lines.values()))
        leaf = re.search(r"struct ListedLeaf \{(.*?)\};", (ROOT / "gpu/engine/listed_params.hpp").read_text(encoding="utf-8"), re.DOTALL)[1]
        members = re.findall(r"^ *([\w:]+) \w+;", leaf, re.MULTILINE)
        self.assertEqual(set(members), {"std::int32_t"})
        self.says("docs/III.3-library.md", f"takes {4 * len(members)} bytes per leaf")
        exercises = list((ROOT / "notebooks_cpp" / "exercises").glob("[0-9]*_*.cpp"))
        kernels = [path for path in exercises if "puzzle.hpp" in path.read_text(encoding="utf-8")]
        self.assertEqual((len(exercises), len(kernels)), (32, 12))
        self.says("docs/mainpage.md", "Thirty-two exercises", "Fourteen notebooks")
        self.assertIn("of which twelve are kernels", text("run"))
        self.assertEqual(len(list((ROOT / "notebooks_cpp").glob("[0-9]*_*.cpp"))), 14)

    def test_tests_that_the_chapters_name_compare_what_they_say(self):
        for name, case in (("tests/reference/decode/test_plain.cpp", "plain: one shift per leaf has the bits of merging key by key"),
                           ("tests/gpu/ladder/test_plain.cpp", "plain kernels: the library kernels have their bits for every N below 200, and for others up to 3000"),
                           ("tests/gpu/backend/test_seen.cpp", "a row has the bits of itself alone"), ("tests/gpu/ladder/test_bits.cpp", "bits: no device changes any"),
                           ("tests/gpu/backend/test_pages.cpp", "random appends, cuts, shared prefixes and resets have the bits of a dense cache")):
            self.assertIn(case, (ROOT / name).read_text(encoding="utf-8"), name)


class Filters(unittest.TestCase):
    def test_every_pattern_of_a_build_file_names_a_test_case(self):
        """doctest runs the cases that other patterns name, and says nothing of one that names none."""
        sources = [path for folder in ("tests", "docs") for path in (ROOT / folder).rglob("*.cpp")]
        titles = {title for path in sources for title in re.findall(r'TEST_CASE(?:_TEMPLATE)?\("([^"]+)"', path.read_text(encoding="utf-8"))}
        patterns = [pattern for path in (ROOT / "tests").rglob("CMakeLists.txt") for found in re.findall(r'"?-tce?=([^"\n]+)"', path.read_text(encoding="utf-8")) for pattern in found.split(",")]
        self.assertGreater(len(patterns), 5)
        self.assertEqual([pattern for pattern in patterns if not fnmatch.filter(titles, pattern)], [])


if __name__ == "__main__":
    unittest.main()
