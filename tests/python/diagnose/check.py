#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives seeded dumps, faulty and right ones, to tree_attn.diagnose, and counts what it says of each.

Run: ./run python [--peers]            or: tests/python/diagnose/check.py [--faulty 2000] [--right 10000 [--foreign]] [--large] [--classes]

A fifth of the dumps have shapes, numbers of ranks and lengths from a far wider range than the others. A fault is named if the tool names it first, or
another that gives the same numbers on this dump within twice the bounds of its errors: its class. Fails if less than 95 % of the faulty dumps
are named, less than 85 % of those of one fault that has at least 20, or if one right dump is called wrong.
"""
import argparse
import collections
import contextlib
import importlib
import itertools
import multiprocessing
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
    """(verdict, fault, seconds of processor); an error of the tool is a verdict too."""
    tool = importlib.import_module("tree_attn.diagnose")
    begin = time.process_time()
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
    return report["verdict"], report.get("fault"), time.process_time() - begin


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


def judge_faulty(i, seed):
    """(fault, its answer's column, whether its shape is held back, seconds, a line)"""
    names = list(generate.NAMES)
    name, turn = names[i % len(names)], i // len(names)
    run = generate.Run(name, seed + turn, held=turn % 5 == 4)
    verdict, fault, seconds = ask(run, i % 10 == 9)
    if verdict == "right":
        answer = "right"
    elif fault == name:
        answer = "named"
    elif fault == NONE:
        answer = "none"
    else:
        answer = "class" if fault in generate.NAMES and run.equals(fault) else "other"
    return name, answer, run.held, seconds, f"{name} {run.seed}{' --held' if run.held else ''}: {verdict}, {fault}"


def judge_other(i, seed):
    run = generate.Run("other", seed + i, held=i % 5 == 4)
    verdict, fault, _ = ask(run, False)
    return f"{verdict}, {fault}"


def judge_right(i, seed, foreign):
    """(source, whether it is called right, seconds, a line) of a dump of the engine of generate.py, or of foreign kernels in three types."""
    if foreign:
        import foreign as kernels
        kernel, dtype, turn = list(kernels.KERNELS)[i % 4], list(kernels.OF_TORCH)[i // 4 % 3], i // 12
        source, run = f"{kernel}, {dtype}", kernels.Right(kernel, dtype, seed + turn, held=turn % 5 == 4)
    else:
        source, run = "this engine", generate.Run("right", seed + i, held=i % 5 == 4)
    verdict, fault, seconds = ask(run, i % 10 == 9)
    return source, verdict == "right", seconds, f"{source} {run.seed}{' --held' if run.held else ''}: {verdict}, {fault}"


def large():
    """Seconds of processor for 8 ranks that hold 32k keys together, and 32k each: right, and with a fault; and as a multiple of a decode of all keys."""
    import tree_attn
    for n in (32768, 8 * 32768):
        for name in ("right", "rank_missing", "rope_position"):
            run = generate.Run(name, 1, p=8, n=n, shape=(1, 1, 8, 1, 128, 128), parts="all", type="F32", kv_type="F32", dealt=True, window=False)
            verdict, fault, seconds = ask(run, False)
            begin = time.process_time()
            tree_attn.attention(run.case.q, run.case.k, run.case.v)
            decode = time.process_time() - begin
            print(f"8 ranks, {n} keys of 128, 8 heads, {name}: {verdict}, {fault}, {seconds:.2f} s, {seconds / decode:.0f} decodes of {1e3 * decode:.1f} ms", flush=True)


def judge_class(i, seed):
    """(fault, others with the same numbers)"""
    names = list(generate.NAMES)
    run = generate.Run(names[i % len(names)], seed + i // len(names), held=i // len(names) % 5 == 4)
    return run.fault, [of for of in [*names, "right"] if of != run.fault and run.equals(of)]


def print_classes(answers):
    equal, dumps = collections.defaultdict(collections.Counter), collections.Counter()
    for name, others in answers:
        dumps[name] += 1
        equal[name].update(others)
    print("| fault | others with the same numbers, in % of its dumps |\n| --- | --- |")
    for name, m in dumps.items():
        print(f"| `{name}` | {', '.join(f'`{of}` {100 * k / m:.0f}' for of, k in equal[name].most_common()) or '-'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faulty", type=int, default=0)
    parser.add_argument("--right", type=int, default=0)
    parser.add_argument("--foreign", action="store_true", help="right dumps of PyTorch, FlashInfer and JAX")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of every kind")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--classes", type=int, default=0, metavar="N", help="which faults have the same numbers, in N dumps")
    parser.add_argument("--list", action="store_true", help="every dump of which the answer is wrong")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    agrees_with_the_library(30)
    failed = False
    with multiprocessing.get_context("spawn").Pool(options.processes) if options.processes > 1 else contextlib.nullcontext() as pool:
        def each(judge, n, *arguments):
            jobs = [(i, options.seed, *arguments) for i in range(n)]
            return pool.starmap(judge, jobs, 20) if pool else itertools.starmap(judge, jobs)
        if options.classes:
            print_classes(each(judge_class, options.classes))
        if options.faulty:
            failed |= print_faulty(each(judge_faulty, options.faulty), options.list)
        if options.faulty >= 100:
            answers = collections.Counter(each(judge_other, 100))
            print("faults that are none of these, 100 dumps: " + ", ".join(f"{answer}: {m}" for answer, m in answers.most_common()))
        if options.right:
            failed |= print_right(each(judge_right, options.right, options.foreign))
    if options.large:
        large()
    return 1 if failed else 0


def print_faulty(answers, list_all):
    """@returns whether too few are named"""
    table, times, lines, failed = collections.defaultdict(collections.Counter), [], [], False
    for name, answer, held, seconds, line in answers:
        for of in (name, "all"):
            table[of].update([answer, "dumps"] + ["held"] * held + ["held, named"] * (held and answer in ("named", "class")))
        times.append(seconds)
        if answer in ("none", "other", "right"):
            lines.append(line)
    print("| fault | dumps | named first, % | another of its class, % | none of these, % | another fault, % | right, % | of unknown shapes: named, % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in [*generate.NAMES, "all"]:
        row, m = table[name], max(1, table[name]["dumps"])
        cells = [100 * row[answer] / m for answer in ("named", "class", "none", "other", "right")] + [100 * row["held, named"] / max(1, row["held"])]
        print(f"| `{name}` | {m} | " + " | ".join(f"{x:.1f}" for x in cells) + " |")
        failed |= row["named"] + row["class"] < (0.95 if name == "all" else 0.85 if m >= 20 else 0) * m
    print(f"{1e3 * numpy.mean(times):.1f} ms of processor a dump, at most {1e3 * max(times):.0f} ms")
    if list_all or failed:
        print("\n".join(lines))
    return failed


def print_right(answers):
    """@returns whether one is called wrong"""
    table, times, lines = collections.Counter(), [], []
    for source, is_right, seconds, line in answers:
        table.update([source] + [(source, "alarm")] * (not is_right))
        times.append(seconds)
        if not is_right:
            lines.append(line)
    print("| right dumps of | dumps | false alarms |\n| --- | ---: | ---: |")
    for source in [source for source in table if isinstance(source, str)]:
        print(f"| {source} | {table[source]} | {table[source, 'alarm']} |")
    print(f"{1e3 * numpy.mean(times):.1f} ms of processor a dump, at most {1e3 * max(times):.0f} ms", *lines[:40], sep="\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
