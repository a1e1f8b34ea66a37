#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives seeded dumps, faulty and right ones, to tree_attn.diagnose, and counts what it says of each.

Run: ./run python [--peers]            or: tests/python/diagnose/check.py [--faulty 2000] [--right 10000 [--foreign]] [--large] [--classes]

A fifth of the dumps have shapes, numbers of ranks and lengths outside the range of the others. A fault is named if the tool names it first, or
another that gives the same numbers on this dump within twice the bounds of its errors: its class. Fails if less than 95 % of the faulty dumps
are named, less than 85 % of those of one fault that has at least 20, or if one right dump is called wrong.
"""
import argparse
import collections
import importlib
import os
import sys
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy  # noqa: E402

import generate  # noqa: E402

NONE = "none of these"


def ask(run, from_file):
    """(verdict, fault, seconds); an error of the tool is a verdict too."""
    tool = importlib.import_module("tree_attn.diagnose")
    begin = time.perf_counter()
    try:
        if from_file:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "dump.safetensors")
                generate.save(path, run.dump, run.types, run.settings)
                dump, settings = tool.read(path)
        else:
            dump, settings = dict(run.dump), dict(run.settings)
        report = tool.diagnose(dump, layout=settings)
    except Exception as error:  # counted as a wrong answer
        report = {"verdict": "error", "fault": f"{type(error).__name__}: {error}"}
    return report["verdict"], report.get("fault"), time.perf_counter() - begin


def agrees_with_the_library(n):
    """Compares the exact result of generated cases with the library's oracle, where it has one: without a soft cap."""
    import tree_attn
    for seed in range(n):
        c = generate.Case(numpy.random.default_rng(seed), seed % 5 == 0, soft_cap=False)
        if c.sink is not None and c.settings["sinks"]:
            continue
        out, _, bound, _ = generate.bounds(c)
        s, wide = c.settings, [x.astype("float64") for x in (c.q, c.k, c.v)]
        sinks = c.sink if c.sink is not None else s["sinks"] or None
        exact = s["v_scale"] * tree_attn.energy_gradient(*wide, scale=s["scale"] * s["k_scale"], causal=s["causal"], window=s["window"] or None, sinks=sinks)
        if not (abs(out - exact) <= 1e-3 * bound).all():
            raise AssertionError(f"case {seed}: the exact output is not that of the library")


def faulty(n, table, times):
    """Asks for n dumps, the faults in turn, and counts answers."""
    names, alarms = list(generate.NAMES), []
    for i in range(n):
        run = generate.Run(names[i % len(names)], i // len(names), held=i // len(names) % 5 == 4)
        verdict, fault, seconds = ask(run, i % 10 == 9)
        times.append(seconds)
        if verdict == "right":
            answer = "right"
        elif fault == run.fault:
            answer = "named"
        elif fault == NONE:
            answer = "none"
        else:
            answer = "class" if fault in generate.NAMES and run.equals(fault) else "other"
        table[run.fault][answer] += 1
        table[run.fault]["held" if run.held else "tried"] += answer in ("named", "class")
        table[run.fault]["of held" if run.held else "of tried"] += 1
        if answer in ("none", "other", "right"):
            alarms.append(f"{run.fault} {run.seed}{' --held' if run.held else ''}: {verdict}, {fault}")
    return alarms


def right_dumps(n, foreign):
    """Right dumps: of the engine of generate.py, or of foreign kernels in three types."""
    if not foreign:
        for i in range(n):
            yield "this engine", generate.Run("right", i, held=i % 5 == 4)
        return
    import foreign as kernels
    for i in range(n):
        kernel, dtype = list(kernels.KERNELS)[i % 4], list(kernels.OF_TORCH)[i // 4 % 3]
        yield f"{kernel}, {dtype}", kernels.Right(kernel, dtype, i // 12, held=i // 12 % 5 == 4)


def large():
    """Seconds for 8 ranks that hold 32k keys each, and 32k keys together: right, and with a fault."""
    for n in (32768, 8 * 32768):
        for name in ("right", "rank_missing", "rope_position"):
            run = generate.Run(name, 1, p=8, n=n, shape=(1, 1, 8, 1, 128, 128), parts="all", type="F32", kv_type="F32", dealt=True, window=False)
            verdict, fault, seconds = ask(run, False)
            print(f"8 ranks, {n} keys of 128, 8 heads, {name}: {verdict}, {fault}, {seconds:.2f} s")


def print_classes(n):
    """The faults, and how often others give the same numbers."""
    print("| fault | others with the same numbers, of 100 dumps |\n| --- | --- |")
    for name in generate.NAMES:
        equal = collections.Counter()
        for seed in range(n):
            run = generate.Run(name, seed, held=seed % 5 == 4)
            equal.update(of for of in [*generate.NAMES, "right"] if of != name and run.equals(of))
        print(f"| `{name}` | {', '.join(f'`{of}` {100 * m / n:.0f}' for of, m in equal.most_common()) or '-'} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faulty", type=int, default=0)
    parser.add_argument("--right", type=int, default=0)
    parser.add_argument("--foreign", action="store_true", help="right dumps of PyTorch, FlashInfer and JAX")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--classes", type=int, default=0, metavar="N", help="which faults are equal, over N dumps of each")
    parser.add_argument("--list", action="store_true", help="every dump of which the answer is wrong")
    options = parser.parse_args()
    failed = False
    agrees_with_the_library(30)
    if options.classes:
        print_classes(options.classes)
    if options.faulty:
        table, times = collections.defaultdict(collections.Counter), []
        wrong = faulty(options.faulty, table, times)
        print("| fault | dumps | named first, % | another of its class, % | none of these, % | another fault, % | right, % | draws held back: named, % |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        table["all"] = sum(table.values(), collections.Counter())
        for name, row in table.items():
            m = row["of held"] + row["of tried"]
            cells = [100 * row[answer] / m for answer in ("named", "class", "none", "other", "right")] + [100 * row["held"] / max(1, row["of held"])]
            print(f"| `{name}` | {m} | " + " | ".join(f"{x:.1f}" for x in cells) + " |")
            failed |= row["named"] + row["class"] < (0.95 if name == "all" else 0.85 if m >= 20 else 0) * m
        print(f"{1e3 * numpy.mean(times):.1f} ms a dump, at most {1e3 * max(times):.0f} ms")
        if options.list or failed:
            print("\n".join(wrong))
    if options.faulty >= 100:
        answers = collections.Counter(ask(generate.Run("other", seed, held=seed % 5 == 4), False)[:2] for seed in range(100))
        print("faults that are none of these, 100 dumps: " + ", ".join(f"{verdict}, {fault}: {m}" for (verdict, fault), m in answers.most_common()))
    if options.right:
        table, times, wrong = collections.defaultdict(lambda: [0, 0]), [], []
        for i, (source, run) in enumerate(right_dumps(options.right, options.foreign)):
            verdict, fault, seconds = ask(run, i % 10 == 9)
            times.append(seconds)
            table[source][0] += 1
            if verdict != "right":
                table[source][1] += 1
                wrong.append(f"{source} {run.seed}{' --held' if run.held else ''}: {verdict}, {fault}")
        print("| right dumps of | dumps | false alarms |\n| --- | ---: | ---: |")
        for source, (m, alarms) in table.items():
            print(f"| {source} | {m} | {alarms} |")
        print(f"{1e3 * numpy.mean(times):.1f} ms a dump, at most {1e3 * max(times):.0f} ms\n" + "\n".join(wrong[:40]))
        failed |= bool(wrong)
    if options.large:
        large()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
