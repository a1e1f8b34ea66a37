# SPDX-License-Identifier: Apache-2.0
"""Programs of a few blocks whose counts are known, for instructions.py."""
import tempfile
from pathlib import Path

import instructions

SUB_WARP = "equal_runs<SubWarpPipeline<SubWarp<BFloat16, 16, 1>>>"  # 128 multiplications per step, two sub-warps per warp
TILE = "equal_runs<MmaPipeline<MmaTile<Half, 64, 4>>>"  # 48 products per leaf


def program(text):
    """SASS as cuobjdump prints it. One word per line: `name:` is a label, `-> name` stands for its address, `opcode x n` for n of them."""
    lines, labels = [], {}
    for line in text.split("\n"):
        line = line.strip()
        if line.endswith(":"):
            labels[line[:-1]] = 16 * len(lines)
        elif line:
            opcode, _, n = line.partition(" x ")
            lines += [opcode] * int(n or 1)
    printed = ["\tcode for sm_90a", "\t\tFunction : kernel"]
    for i, line in enumerate(lines):
        word, arrow, label = line.partition("-> ")
        printed += [f"        /*{16 * i:04x}*/    {word}{f'{labels[label]:#x}' if arrow else ''} ;    /* 0x000fe20000000800 */",
                    "                      /* 0x000fca00078e00ff */"]
    return "\n".join(printed)


def walks(text, name=SUB_WARP):
    (architecture, kernel, code), = instructions.functions_of(program(text))
    assert (architecture, kernel) == ("sm_90a", "kernel")
    return instructions.walks_of(name, code)


def only(text, name=SUB_WARP):
    walk, = walks(text, name)
    return walk


ARITHMETIC = "FFMA R1, R2, R3, R1 x 64\nMUFU.EX2 R1, R2\nFFMA R1, R2, R3, R1 x 64\n"  # 129 instructions


def torn(*opcodes, name="_ZN9tree_attn4cuda8one_shotINS0_1AEEEvv"):
    text = program("\n".join(f"{opcode} desc[UR8][R2.64], R4" for opcode in opcodes) + "\nEXIT").replace("Function : kernel", f"Function : {name}")
    return instructions.torn_packets(instructions.functions_of(text))


def main():
    # A packet is stored and loaded as a whole, at system scope; the word of the host has 32 bits.
    whole = ["STG.E.128.STRONG.SYS", "LDG.E.128.STRONG.SYS", "LDG.E.STRONG.SYS", "LDG.E.64", "ATOMG.E.INC.STRONG.GPU"]
    assert torn(*whole) == (1, []) and torn(*whole, name="_ZN9tree_attn4cuda10equal_runsINS0_1AEEEvv") == (0, [])
    for replaced, by in ((0, "STG.E.64.STRONG.SYS"), (0, "STG.E.128.STRONG.GPU"), (0, "ST.E.128.STRONG.SYS"), (1, "LDG.E.64.STRONG.SYS"), (1, "LDG.E.128")):
        kernels, problems = torn(*whole[:replaced], by, *whole[replaced + 1:])
        assert kernels == 1 and any(f"no {whole[replaced]}" in problem for problem in problems), (by, problems)
    assert len(torn(*whole, "STG.E.64.STRONG.SYS")[1]) == 1 and len(torn(*whole, "STG.E.STRONG.SYS")[1]) == 1

    # A loop of one block; what stands before and after it is not in it.
    plain = "MOV R1, R2 x 7\nhead:\n" + ARITHMETIC + "@P0 BRA -> head\nEXIT"
    walk = only(plain)
    assert (walk["pass"], walk["rows"], walk["worker"]) == (130, "loaded", "SubWarp<BFloat16, 16, 1>")
    assert (walk["leaf"], walk["per_8_kib"]) == (8 * 130 // 2, 130)  # two leaves at once; 8 KiB of two rows of eight keys
    assert (walk["hot_bytes"], walk["loop_bytes"], walk["kernel_bytes"]) == (16 * 130, 16 * 130, 16 * 138)

    # No exponential, too few multiplications, or no known worker: no walk.
    assert walks(plain.replace("MUFU.EX2", "MUFU.RCP")) == []
    assert walks(plain.replace("x 64", "x 63")) == []
    assert walks(plain, "naive_scores<float>") == []

    # What a pass may skip is not counted, whether it stands in the loop or behind it, where it jumps back from.
    assert only("head:\n@P1 BRA -> over\nFADD R1, R2, R3 x 30\nover:\n" + ARITHMETIC + "@P0 BRA -> head\nEXIT")["pass"] == 131
    cold = "head:\nBRA.DIV UR4, -> cold\nback:\n" + ARITHMETIC + "@P0 BRA -> head\nEXIT\ncold:\nSHFL.BFLY PT, R1, R2, 0x1, 0x1f x 30\nBRA -> back"
    assert only(cold)["pass"] == 131 and only(cold)["loop_bytes"] == 16 * (131 + 31)
    # An unconditional branch is not passed by; a condition as operand makes it one that may be.
    both = "head:\n{}\nFADD R1, R2, R3 x 30\nover:\n" + ARITHMETIC + "BRA P0, -> head\nEXIT"
    assert only(both.format("BRA -> over"))["loop_bytes"] == only(both.format("BRA !P1, -> over"))["loop_bytes"] - 16 * 30

    # Of two ways with the same work the shorter one counts; one without it does not, however short.
    halves = "head:\nMUFU.EX2 R1, R2\nFFMA R1, R2, R3, R1 x 64\n@P2 BRA -> last\n@P1 BRA -> slow\nFFMA R1, R2, R3, R1 x 64\nBRA -> last\nslow:\nFFMA R1, R2, R3, R1 x 64\nFADD R1, R2, R3 x 40\nlast:\n@P0 BRA -> head\nEXIT"
    assert only(halves)["pass"] == 1 + 64 + 2 + 64 + 1 + 1

    # One lane copies, so the warp does: a pass without the copy is none. Where lanes take turns, two sub-warps take two.
    copy = "head:\n" + ARITHMETIC + "BSSY B0, -> on\n@P1 BRA -> join\n{}join:\nBSYNC B0\non:\n@P0 BRA -> head\nEXIT"
    bulk = only(copy.format("UBLKCP.S.G [UR14], [UR12], UR10\n"))
    assert (bulk["rows"], bulk["pass"]) == ("bulk", 129 + 5)
    turns = copy.format("turn:\nELECT P1, URZ, PT x 4\nUBLKCP.S.G [UR14], [UR12], UR10\n@P1 BRA.U.ANY -> turn\n")
    assert only(turns)["pass"] == 129 + 2 + 2 * 6 + 2
    assert only(copy.format("LDGSTS.E.BYPASS.128 [R1], desc[UR16][R2.64]\n"))["rows"] == "cp.async"
    for load in ("LDG.E.128.CONSTANT", "LDG.E.NA.128.CONSTANT"):
        assert only(copy.format(load + " R4, desc[UR16][R2.64]\n"))["rows"] == "loads"
    assert only(copy.format("LDG.E R4, desc[UR16][R2.64]\n"))["rows"] == "loaded"

    # A BSYNC far from the end of its region goes there.
    far = "head:\nBSSY B0, -> on\n@P1 BRA -> aside\n" + ARITHMETIC + "on:\n@P0 BRA -> head\nEXIT\naside:\n" + ARITHMETIC.replace("MUFU.EX2 R1, R2", "MUFU.EX2 R1, R2\nFADD R1, R2, R3") + "BSYNC B0"
    assert only(far)["loop_bytes"] == 16 * (2 + 129 + 1 + 130 + 1) and only(far)["pass"] == 132

    # The end of a leaf: half of what it adds, for every leaf; its code is hot.
    leaf = "head:\n" + ARITHMETIC + "@P1 BRA -> on\nFMUL R1, R2, R3 x 12\n@P2 BRA -> store\nFMUL R1, R2, R3 x 9\nstore:\nSTG.E desc[UR4][R2.64], R1 x 10\non:\n@P0 BRA -> head\nEXIT"
    walk = only(leaf)
    assert (walk["pass"], walk["leaf"]) == (131, (8 * 131 + 32 // 2) // 2) and walk["hot_bytes"] == 16 * 163

    # The start: a loop is passed by, a call is none of a way's, and the first copy counts, also if a loop has the others.
    start = ("MOV R1, R2 x 5\n@P1 BRA -> over\nloads:\nLDG.E.64 R2, desc[UR4][R2.64]\n@P2 BRA -> loads\nover:\n@P3 BRA -> small\n"
             "CALL.REL.NOINC R1\nBRA -> on\nsmall:\nFADD R1, R2, R3 x 20\non:\n@P4 BRA -> off\n")
    loop = copy.format("UBLKCP.S.G [UR14], [UR12], UR10\n").replace("-> on", "-> after").replace("on:", "after:") + "\noff:\nEXIT"
    assert only(start + loop)["start"] == 5 + 1 + 1 + 20 + 1 + 129 + 2 and only(plain)["start"] is None
    assert only(start + "UBLKCP.S.G [UR14], [UR12], UR10\n" + loop)["start"] == 5 + 1 + 1 + 20 + 1

    # The ends: from the walk to the arrival, and back to the join from there to the exit, each with one state that is copied and merged.
    copies, merges = "IADD3 R1, R1, R1, R1 x 4\nLDGSTS.E.BYPASS.128 [R1], desc[UR16][R2.64]\n@P1 BRA -> copies\n", "FMUL R1, R1, R2 x 5\nFADD R1, R1, R2 x 5\n@P2 BRA -> merges\n"
    ends = (plain.replace("EXIT", "FADD R1, R2, R3 x 9\njoin:\nFADD R1, R2, R3 x 20\n@P1 BRA -> none\ncopies:\n" + copies + "none:\nMOV R1, R2\n@P2 BRA -> over\nmerges:\n" + merges + "over:\n")
            + "@P4 BRA -> out\nATOMG.E.INC.STRONG.GPU PT, R1, desc[UR4][R2.64], R3\n@P3 BRA -> join\nEXIT\nout:\nSTG.E desc[UR4][R2.64], R1 x 3\nEXIT")
    walk, to_copies, to_merges = only(ends), 20 + 1 + 6, 2 + 11
    assert (walk["arrival"], walk["exit"], walk["state"]) == (9 + to_copies + to_merges + 1 + 2, to_copies + to_merges + 1 + 3 + 1, 6 + 11)
    # Without a copy, or a merge, on the way there is no end.
    assert only(ends.replace("LDGSTS.E.BYPASS.128", "LDG.E.128.CONSTANT"))["arrival"] is None and only(ends.replace("FADD R1, R1, R2 x 5", "FADD R1, R1, R2"))["arrival"] is None

    # Code for sm_80 may leave a loop by a CALL that does not return; what comes after it is found, and is no way with a call.
    left = "MOV R1, R2 x 5\nwait:\nFADD R1, R2, R3\n@P0 CALL.REL.NOINC -> on\nBRA -> wait\non:\nLDGSTS.E.BYPASS.128 [R1], desc[UR16][R2.64]\n"
    walk = only(left + copy.replace("-> on", "-> after").replace("on:", "after:").format("LDGSTS.E.BYPASS.128 [R1], desc[UR16][R2.64]\n"))
    assert (walk["rows"], walk["start"], walk["pass"]) == ("cp.async", 5 + 2, 129 + 5)
    # A function that returns is called after a MOV of the address after the call: 0x30.
    assert only("MOV R20, 0x30\nMOV R1, R2\nCALL.REL.NOINC -> divide\n" + plain + "\ndivide:\nRET.REL.NODEC R20 0x0")["pass"] == 130

    # Two walks of one kernel; the loop around them is none.
    two = "outer:\n" + plain.replace("EXIT", "").replace("head", "a") + plain.replace("EXIT", "").replace("head", "b").replace("64\nM", "80\nM") + "@P3 BRA -> outer\nEXIT"
    assert sorted(walk["pass"] for walk in walks(two)) == [130, 146]

    # Tensor cores: a pass is a leaf.
    tile = only("head:\nHMMA.16816.F32.BF16 R4, R8, R2, R4 x 16\nMUFU.EX2 R1, R2 x 17\nHMMA.16816.F32 R4, R8, R2, R4 x 32\n@P0 BRA -> head\nEXIT", TILE)
    assert (tile["pass"], tile["leaf"], tile["per_8_kib"]) == (66, 66, 33)

    # Work that only a loop inside the loop does often enough cannot be counted.
    try:
        walks("head:\nMUFU.EX2 R1, R2\n@P1 BRA -> b\nFFMA R1, R2, R3, R1 x 64\nBRA -> on\nb:\nFFMA R1, R2, R3, R1 x 64\non:\n@P0 BRA -> head\nEXIT")
    except ValueError as error:
        assert "no way around the loop at 0x0" in str(error)
    else:
        raise AssertionError("half of the work was taken for all of it")

    # The check.
    large = only(plain.replace("MUFU.EX2 R1, R2", "MUFU.EX2 R1, R2\nFADD R1, R2, R3 x 2500")) | {"kernel": "k", "architecture": "sm_90a"}
    assert len(instructions.problems_of([large], 40, "k")) == 1 and instructions.problems_of([large], 42, "k") == []
    assert len(instructions.problems_of([], 40, "k")) == 1

    # A kernel with code has a walk, unless its name is not asked for; one that is not compiled for an architecture has no code.
    def of_object(text, wanted="^equal_runs<"):
        with tempfile.TemporaryDirectory() as folder:
            tool = Path(folder) / "cuobjdump"
            usage = "arch = sm_90a\n Function kernel:\n  REG:40 STACK:0"
            tool.write_text(f"#!/bin/sh\nif [ $1 = -sass ]; then cat <<'END'\n{program(text)}\nEND\nelse cat <<'END'\n{usage}\nEND\nfi\n", encoding="utf-8")
            tool.chmod(0o755)
            readable, instructions.resources.readable = instructions.resources.readable, lambda names: {name: SUB_WARP for name in names}
            try:
                found, without = instructions.walks_of_object("x.o", str(tool), wanted)
            finally:
                instructions.resources.readable = readable
            return len(found), len(without)

    assert of_object(plain) == (1, 0) and of_object("MOV R1, c[0x0][0x28]\nEXIT\nend:\nBRA -> end\nNOP x 12") == (0, 0)
    assert of_object(plain.replace("x 64", "x 63"), "^naive<") == (0, 0)
    assert of_object(plain.replace("x 64", "x 63")) == of_object("LDG.E R1, R2\nEXIT") == (0, 1)

    assert of_object("VIMNMX.RELU R0, P0, P0, R0, 0x8, PT\nEXIT", "^naive<") == (0, 1) and of_object("VIMNMX.RELU R0, PT, PT, R0, 0x8, PT\nEXIT", "^naive<") == (0, 0)

    # What is recorded: 130 instructions are 2 % more than 127, and 6 % more than 122; the same holds for the start.
    def changed(*leaves, architecture="sm_90a", start=130, **other):
        before = [large | {"leaf": leaf, "architecture": architecture, "start": start} | other for leaf in leaves]
        return len(instructions.changes([large | {"leaf": 130, "start": 130}], before))

    assert changed(127) == 0 and changed(122) == 1 and changed(139) == 1
    assert changed(130, start=127) == 0 and changed(130, start=122) == changed(130, start=None) == 1
    assert changed(130, arrival=100) == changed(130, exit=100) == changed(130, state=100) == 1
    assert changed(130, 130) == 5 and changed(130, rows="bulk") == 10
    assert changed(122, architecture="sm_80") == 0
    print("instructions: the self-test is well")
