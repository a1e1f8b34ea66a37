# SPDX-License-Identifier: Apache-2.0
"""The report of `./run bench --backend cuda` on measurements that are made up, and the other libraries without a GPU."""
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
import report

loader = importlib.machinery.SourceFileLoader("measure", str(FOLDER / "measure"))
measure = importlib.util.module_from_spec(importlib.util.spec_from_loader("measure", loader))
loader.exec_module(measure)

LIBRARY = "equal-runs"
DEVICE = {"part": "device", "device": "a GPU", "n_multiprocessors": 132, "library": LIBRARY, "read_bytes_per_second": 4.66e12}
READ = {"512": 3e-6, "8k": 17e-6, "64k": 117e-6, "1M": 1844e-6}


def step(shape, seconds, read, name=LIBRARY, **more):
    return {"part": "step", "shape": shape, "step": name, "bytes": 1 << 20, "path": "scalar", "n_splits": 8, "n_blocks": 0, "n_threads": 256,
            "event_seconds": 2 * seconds, "graph_seconds": seconds, "read_seconds": read} | more


def made_up(times_read):
    """The lines of both programs, where the library kernel takes `times_read` times as long as a read."""
    lines = [{"part": "clock", "load": "reading", "hertz": 1.7e9}, {"part": "clusters", "n_blocks": 8, "shared_kib": 220, "n_clusters": 14},
             {"part": "clusters", "n_blocks": 16, "shared_kib": 220, "note": "invalid argument"}]
    for n_blocks, seconds in ((128, 1.2e-4), (132, 1.1e-4)):
        lines.append({"part": "copies", "shape": "BF16, 16/16 heads, 64k keys", "way": "bulk", "kib_in_flight": 64, "n_blocks": n_blocks, "bytes": 1 << 29,
                      "graph_seconds": seconds, "read_seconds": 1e-4})
    lines.append(DEVICE)
    for heads in ("BF16, 16/16", "BF16, 32/8", "BF16, 8/8", "F32, 16/16"):
        for keys, read in READ.items():
            n = {"512": 512, "8k": 8192, "64k": 65536, "1M": 1 << 20}[keys]
            shape = f"{heads} heads, {keys} keys"
            lines.append({"part": "shape", "shape": shape, "dtype": heads.split(",")[0], "heads": 16, "kv_heads": 16, "dim": 128, "lengths": [n], "n_sets": 1,
                          "bytes": 1 << 20, "read_seconds": read})
            lines.append({"part": "step", "shape": shape, "step": "naive", "bytes": 1 << 20, "note": "not timed: more than 8k keys"})
            lines.append(step(shape, times_read * read, read))
    for heads in ("16/16", "32/8"):
        shape = f"BF16, {heads} heads, 64 sequences of 1k to 32k keys"
        lines.append({"part": "shape", "shape": shape, "lengths": [1024, 32768], "read_seconds": 1e-3})
        lines.append(step(shape, times_read * 1e-3, 1e-3))
    return lines


def goal_of(result, text):
    found, = [goal for goal in result["goals"] if goal["goal"].startswith(text)]
    return found


def check_goals():
    # All is reached where the kernel is as fast as a read, but for the libraries, which have no times.
    result = report.result_of(made_up(1.0), "2026-01-01")
    marks = [goal["reached"] for goal in result["goals"]]
    assert marks.count(True) == 15 and marks.count(False) == 0 and marks.count(None) == 16, marks
    # 512 keys take 1.7 x 3 us, 8k keys 11.9 us more than a read.
    slow = report.result_of(made_up(1.7), "2026-01-01")
    assert goal_of(slow, "BF16, 16/16 heads, 512 keys: at most") == {"goal": "BF16, 16/16 heads, 512 keys: at most 5 us", "measured": "5.10 us", "reached": False}
    assert goal_of(slow, "F32, 16/16 heads, 8k keys: at most 3 us")["measured"] == "11.90 us"
    assert goal_of(slow, "BF16, 32/8 heads, 64k keys: at most 1.03")["reached"]
    assert [goal["reached"] for goal in slow["goals"]].count(False) == 12

    # What begins before the launch before it has ended is compared by what it takes without that: goals, and other libraries.
    overlapping = [line | {"apart_seconds": 1.7 / 1.3 * line["graph_seconds"]} if "graph_seconds" in line else line for line in made_up(1.3)]
    assert [goal["reached"] for goal in report.result_of(overlapping, "2026-01-01")["goals"]] == [goal["reached"] for goal in slow["goals"]]

    # Each limit, from both sides; a step that is not the library's counts for nothing.
    def one(*lines):
        return report.result_of([DEVICE, *lines], "2026-01-01")

    for shape, seconds, reached in (("BF16, 16/16 heads, 64k keys", 1 / 0.951, True), ("BF16, 16/16 heads, 64k keys", 1 / 0.949, False),
                                    ("F32, 16/16 heads, 1M keys", 1 / 0.981, True), ("F32, 16/16 heads, 1M keys", 1 / 0.979, False),
                                    ("BF16, 32/8 heads, 64 sequences of 1k to 32k keys", 1 / 0.921, True),
                                    ("BF16, 32/8 heads, 64 sequences of 1k to 32k keys", 1 / 0.919, False)):
        assert goal_of(one(step(shape, seconds, 1.0)), shape + ": at least")["reached"] is reached
        assert goal_of(one(step(shape, seconds, 1.0, name="split")), shape + ": at least")["reached"] is None
    for more, reached in ((2.9e-6, True), (3.1e-6, False)):
        assert goal_of(one(step("BF16, 32/8 heads, 8k keys", 9e-6 + more, 9e-6)), "BF16, 32/8 heads, 8k keys: at most 3")["reached"] is reached
    for times, reached in ((1.029, True), (1.031, False)):
        both = one(step("BF16, 8/8 heads, 8k keys", 1.0, 1.0), step("BF16, 32/8 heads, 8k keys", times, 1.0))
        assert goal_of(both, "BF16, 32/8 heads, 8k keys: at most 1.03")["reached"] is reached

    # Against other libraries: the fastest counts, and how much faster depends on the length.
    for keys, n, least in (("8k", 1 << 13, 1.4), ("16k", 1 << 14, 1.2), ("32k", 1 << 15, 1.2), ("64k", 1 << 16, 1.1)):
        shape = f"BF16, 16/16 heads, {keys} keys"
        lines = [{"part": "shape", "shape": shape, "lengths": [n], "read_seconds": 1.0}, step(shape, 1.0, 1.0),
                 {"part": "peer", "shape": shape, "peer": "slow", "graph_seconds": 9.0}, {"part": "peer", "shape": shape, "peer": "none", "note": "does not take it"}]
        for times, reached in ((least + 0.01, True), (least - 0.01, False)):
            goal = goal_of(one(*lines, {"part": "peer", "shape": shape, "peer": "fast", "graph_seconds": times}), f"{shape}: at least {least} times")
            assert goal["reached"] is reached and goal["goal"].endswith("as fast as fast")


def check_report():
    lines = made_up(1.25) + [step("BF16, 16/16 heads, 512 keys", 5e-6, 3e-6, name="short-end", cluster=8, apart_seconds=6e-6), {"part": "versions", "torch": "9.9"}, {"part": "missing", "peer": "flash_attn", "note": "no wheel"},
                             {"part": "peer", "shape": "BF16, 8/8 heads, 8k keys", "peer": "PyTorch, math", "graph_seconds": 42.5e-6},
                             {"part": "peer", "shape": "BF16, 8/8 heads, 8k keys", "peer": "PyTorch, flash", "note": "does not take it"}]
    small = next(line for line in lines if line["part"] == "shape" and line["shape"] == "BF16, 8/8 heads, 512 keys")
    small["cached_read_seconds"] = 2e-6
    lines[:0] = [{"part": "walk", "shape": "BF16, 4/4 heads, 2k keys", "path": "scalar", "graph_seconds": 1e-5, "twice_seconds": 1.5e-5, "block_bytes_per_second": 2 * 4.66e12 / 132},
                 {"part": "walk", "shape": "F32, 4/4 heads, 2k keys", "note": "the L2 cache does not hold it"},
                 {"part": "counters", "shape": "BF16, 16/16 heads, 8k keys", "kernel": "short_end", "smsp__inst_executed.sum": 123456.0}, {"part": "counters", "note": "no more"}]
    lines.append({"part": "stamps", "shape": small["shape"], "step": "equal-runs", "n_blocks": 128, "start_seconds": 1.25e-6, "walk_seconds": 7e-6, "end_seconds": 2e-6, "kernel_seconds": 11e-6,
                  "event_seconds": 14e-6})
    next(line for line in lines if line["part"] == "step" and line["shape"] == small["shape"] and "graph_seconds" in line)["cached_seconds"] = 2.5e-6
    result = report.result_of(lines, "2026-01-01")
    assert json.loads(report.text_of(result)) == result
    text = "\n".join(report.markdown(result))
    for row in ("# a GPU, 2026-01-01", "Clock, load reading: 1700 MHz.", "| BF16, 16/16 heads, 64k keys | bulk | 64 | 120 us, 0.833 | 110 us, 0.909 |", "| 8 | 220 | 14 |",
                "| 16 | 220 | invalid argument |", "| BF16, 4/4 heads, 2k keys | scalar | 10 | 15 | 70.6 | 2.00 |",
                "| F32, 4/4 heads, 2k keys | the L2 cache does not hold it |  |  |  |  |", "| BF16, 16/16 heads, 8k keys | short_end | 1.235e+05 |" + "  |" * 9, "no more", "| BF16, 16/16 heads, 8k keys | naive |  |  |  | not timed: more than 8k keys |  |  |  |  |",
                "| BF16, 16/16 heads, 64k keys | equal-runs | scalar | 8 x 256 | 292.5 | 146.2 | 0.800 | 146.2 | 0.800 | 7 |",
                "| BF16, 16/16 heads, 512 keys | short-end | scalar, clusters of 8 | 8 x 256 | 10 | 5 | 0.600 | 6 | 0.500 | 175 |",
                "| BF16, 8/8 heads, 512 keys | equal-runs | 2.5 | 0.800 | 3.75 |", "| BF16, 8/8 heads, 512 keys | equal-runs | 128 | 1.25 | 7 | 2 | 11 | 14 |",
                "| BF16, 8/8 heads, 8k keys | PyTorch, math | 42.5 | 0.400 | 2.00 |", "| BF16, 8/8 heads, 8k keys | PyTorch, flash | does not take it |  |  |", "torch 9.9",
                "* flash_attn: no wheel", "| BF16, 16/16 heads, 64k keys: at least 0.95 of a read | 0.800 | no |",
                "| BF16, 8/8 heads, 8k keys: at least 1.4 times as fast as PyTorch, math | 2.00 | yes |"):
        assert row in text.split("\n"), row
    # The chapter's table takes such a file.
    sys.path.insert(0, str(measure.ROOT / "docs" / "tools"))
    import kernel_tables
    kernel_tables.RECORD = json.loads(report.text_of(result))
    assert any(row.startswith("| equal-runs") and "0.8" in row for row in kernel_tables.measured())
    assert report.progress(lines[-3]) == "peer: BF16, 8/8 heads, 8k keys, PyTorch, math, 42.5 us"


def killed_at(shape):
    """A progress line that ends the command where it comes to a shape."""
    def progress(line):
        if line["part"] == "shape" and line["shape"] == shape:
            raise KeyboardInterrupt
        return ""

    return progress


def check_measure():
    """The command, with programs that print what was made up. PRINTED_NAME is how many lines a program prints before it ends."""
    with tempfile.TemporaryDirectory() as folder:
        measure.ROOT, measure.BUILD = Path(folder), Path(folder) / "build-gpu"
        measure.BUILD.mkdir()
        (Path(folder) / "docs").mkdir()
        def write_programs(times_read=1.0):
            for part, name in measure.PROGRAMS.items():
                lines = [line for line in made_up(times_read) if line["part"] in measure.PARTS[part]]
                program = measure.BUILD / name
                program.write_text(f"#!/bin/sh\necho Compiling ...\nhead -n ${{PRINTED_{name}:-999}} <<'END'\n" + "\n".join(map(json.dumps, lines)) + f"\nEND\nexit ${{STATUS_{name}:-0}}\n")
                program.chmod(0o755)

        write_programs()
        measure.gpu, measure.toolkit.nvcc = lambda: ("a GPU", "01"), lambda: "nvcc"
        measure.toolkit.program = lambda name: None
        python_with_peers, measure.python_with_peers = measure.python_with_peers, lambda: (None, [{"part": "missing", "peer": "torch", "note": "no wheel"}])
        silent = open(os.devnull, "w", encoding="utf-8")
        out, err, sys.stdout, sys.stderr = sys.stdout, sys.stderr, silent, silent
        docs, bench = Path(folder) / "docs" / "time_ladder.json", Path(folder) / "build-bench" / "time_ladder.json"
        try:
            def main(*options):
                sys.argv = ["measure", "--backend", "cuda", *options]
                return measure.main()

            def on_file():
                return json.loads(bench.read_text())

            # Other libraries need the shapes of the ladder.
            assert main("--only", "peers") == 2 and not bench.exists()
            assert main() == 0 and bench.exists() and not docs.exists()
            assert "## Goals" in bench.with_suffix(".md").read_text() and "no ncu" in bench.with_suffix(".md").read_text()
            assert list(on_file()["parts"].items()) == [(part, "finished") for part in ("copies", "walks", "ladder", "stamps", "counters")]
            assert main("--update") == 0 and json.loads(docs.read_text())["device"] == "a GPU"
            assert docs.read_text() == bench.read_text()

            # Parts that are measured again replace what is on file of them, and keep the rest.
            whole = on_file()
            assert main("--only", "peers") == 0 and on_file()["missing"] == [{"peer": "torch", "note": "no wheel"}]
            assert main("--only", "copies,walks", "--update") == 0 and on_file() == json.loads(docs.read_text()) != whole
            assert {key: value for key, value in on_file().items() if key not in ("parts", "missing")} == {key: value for key, value in whole.items() if key not in ("parts", "missing")}
            # What is on file is of the same GPU, the same programs and the same lengths.
            before = bench.read_text()
            assert main("--only", "copies", "--quick") == 2 and bench.read_text() == before
            measure.gpu = lambda: ("a GPU", "02")
            assert main("--only", "copies") == 2 and bench.read_text() == before
            measure.gpu = lambda: ("a GPU", "01")
            write_programs(2.0)
            assert main("--only", "copies") == 2 and bench.read_text() == before
            # Without --only all is new.
            assert main() == 0 and on_file()["missing"] == [] and goal_of(on_file(), "BF16, 16/16 heads, 64k keys: at least 0.95")["reached"] is False

            # A part that fails leaves what it has printed, and is not written where the documentation is.
            docs.unlink()
            os.environ |= {"STATUS_time_ladder": "1", "PRINTED_time_ladder": "4"}
            assert main("--update") == 1 and not docs.exists() and len(on_file()["lines"]) == 2 and on_file()["parts"]["ladder"] == "ended early"
            assert "Ended early: ladder." in bench.with_suffix(".md").read_text()
            # So does the command that is killed, at every line.
            del os.environ["PRINTED_time_ladder"], os.environ["STATUS_time_ladder"]
            measure.report.progress, progress = killed_at("BF16, 16/16 heads, 8k keys"), measure.report.progress
            try:
                main("--only", "ladder")
            except KeyboardInterrupt:
                assert [line["shape"] for line in on_file()["shapes"]] == ["BF16, 16/16 heads, 512 keys"] and on_file()["parts"] | {"ladder": 0} == {part: "finished" for part in measure.PROGRAMS} | {"ladder": 0, "counters": "finished"}
            else:
                raise AssertionError("it was not killed")
            measure.report.progress = progress
            # The rest can be measured then.
            assert main("--only", "ladder", "--update") == 0 and docs.read_text() == bench.read_text()
            # An incomplete record is none for the documentation.
            docs.unlink()
            bench.unlink()
            assert main("--only", "ladder", "--update") == 0 and not docs.exists() and list(on_file()["parts"]) == ["ladder"]

            # Refused, each by what is missing.
            measure.toolkit.nvcc = lambda: None
            assert main() == 2 and "nvcc" in measure.refusal()
            measure.gpu = lambda: None
            assert main() == 2 and "GPU" in measure.refusal()
        finally:
            sys.stdout, sys.stderr = out, err
            measure.python_with_peers = python_with_peers


check_goals()
check_report()
check_measure()
print("measure: all is well")
