#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Instructions of the hot loop of every walk, and of what combines, counted in the compiled code; and how packets are stored and loaded.

count X.o ...   prints the table, and fails where a kernel has no walk, or a walk too much hot code; --json FILE writes it for the
                documentation; --recorded FILE fails where that file is of the same compiler and has other counts
packets X.o ... fails where a kernel of one-shot stores or loads a packet other than by one access of 128 bits at system scope

The code is what `cuobjdump -sass` prints, see toolkit.py; where that is missing, `count` says so and exits with 77, and so does `packets`.

What is counted
* A walk on tensor cores is an innermost loop that makes weights and multiplies (HMMA). Weights are where the second coefficient of the polynomial of 2^x
  is added to a product (FFMA). On scalar cores it is a loop over leaves that holds two loops that multiply (FMUL): over the keys
  of a leaf, and over its values. A kernel has one per way to its
  rows, named by the copies in the loop: bulk (UBLKCP), tensor map (UTMALDG), cp.async (LDGSTS), loads (LDG of
  16 bytes). A kernel without code, for it is not compiled for this architecture,
  has none.
* A pass is the cheapest way once around the loop, without its inner back edges, that makes weights, does at least the
  multiplications of one pass (a leaf of scores and of values in two parts on tensor cores; on scalar cores, without weights, the scores of
  eight keys, and their values), and starts the most copies. So what a pass of whole, aligned rows with finite values may skip is not in it:
  waiting for a barrier a second time, shuffles of diverged lanes, rows without a key.
* A pass on scalar cores is a step of eight keys and their values, of which a leaf has eight; one of a tile is a leaf. Every second leaf ends
  with a merge in registers, on average one with a subtree in memory, and a store: the cheapest way around the loop with the
  most multiplications of states (FMUL) and stores of them. Half of what that adds to a pass is added per leaf. A soft cap is
  passed by.
* Warpgroups multiply by HGMMA, and a pass is a leaf of one warp of them. Of four that share latent rows the first one, which
  multiplies keys too, has a loop of its own; in that of the others the way that makes weights is counted. A tile of 64 queries is counted
  once more with 32: by a way that makes weights once, and half of what the tree adds.
* Hot code is the instructions on either of the two ways, each 16 bytes.
* The start of a walk is the instructions before the first copy of its kind, on the cheapest way forward to one without a call: so a
  loop over the entries of a batch is passed by, and where the compiler asks whether a division of 64 bits fits 32, it does.
* The end of a walk is the cheapest way from its loop to the exit.
* A kernel that combines states of units is counted by the cheapest way that loads a state, merges, stores and exits; and by the cheapest
  way once around its smallest loop that loads states and merges them: eight units.
"""

import argparse
import concurrent.futures
import heapq
import json
import re
import subprocess
import sys
from pathlib import Path

import resources
import toolkit

SKIPPED = 77
BYTES = 16  # of one instruction
LEAF_KEYS, KEYS_PER_STEP, WARP, LONGEST_ROW = 64, 8, 32, 576
COPIES = {"UBLKCP": "bulk", "UTMALDG": "tensor map", "LDGSTS": "cp.async", "LDG.E.128.CONSTANT": "loads"}  # in order of precedence
MOST_CHANGE = 0.05  # of the instructions of a leaf, from what the documentation shows
SLOT_KEYS = 8  # weights that a lane makes at once
FEWEST_STORES, FEWEST_PRODUCTS = 4, 4  # FMULs and stores in a block that is about a state, not about one element

FUNCTION = re.compile(r"\s*Function : (\S+)")
ARCHITECTURE = re.compile(r"\s*code for (\S+)")
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
COMBINES = re.compile(r"^(combine<|exchange_states\b)")
ONE_SHOT, PACKETS = re.compile("15exchange_states"), ("STG.E.128.STRONG.SYS", "LDG.E.128.STRONG.SYS")
# nvcc 13.0 answers "is min(max(x, 0), n) n?" by the predicate of this, which on an H200 is that x is in [0, n].
WRONG_CLAMP = re.compile(r"R\w+, P[0-6], P[0-6], ")
SECOND_COEFFICIENT = re.compile(r", 0\.00133908074349\d*$")  # 0x1.5f0830p-10
ENDS = {"EXIT", "RET", "BRX", "JMX", "JMP", "KILL", "BPT"}


class Instruction:
    def __init__(self, address, predicate, opcode, operands):
        # Some versions of cuobjdump print NA, which is about the L1 cache.
        self.address, self.predicate, self.opcode = address, (predicate or "").strip(), opcode.replace(".NA.", ".")
        self.base = opcode.split(".")[0]
        self.operands = operands.strip()
        target = TARGET.search(self.operands)
        self.target = int(target[1], 16) if target else None

    def always(self):
        """Tests whether it is carried out, or a branch taken, whatever the predicates are."""
        conditional = self.base == "BRA" and ("," in self.operands or ".U." in self.opcode + "." or ".DIV" in self.opcode)
        return self.predicate in ("", "@PT") and not conditional


class Block:
    """Instructions of which all are carried out if the first is."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.after = []  # indices of blocks
        self.times = 1  # per pass

    def count(self, *opcodes):
        """Instructions with one of these opcodes, whatever follows it after a dot."""
        return sum((i.opcode + ".").startswith(tuple(opcode + "." for opcode in opcodes)) for i in self.instructions)

    def makes_weights(self):
        return any(i.base == "FFMA" and SECOND_COEFFICIENT.search(i.operands) for i in self.instructions)

    def caps_scores(self):
        """Tests whether it has the polynomial of a soft cap, which is not fused."""
        return any(i.base == "FADD" and SECOND_COEFFICIENT.search(i.operands) for i in self.instructions)

    def cost(self):
        return self.times * len(self.instructions)


def functions_of(text):
    """[(architecture, name, instructions)] of what cuobjdump -sass has printed."""
    functions, architecture = [], ""
    for line in text.splitlines():
        if match := ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := FUNCTION.match(line):
            functions.append((architecture, match[1], []))
        elif (match := INSTRUCTION.match(line)) and functions:
            functions[-1][2].append(Instruction(int(match[1], 16), *match.groups()[1:]))
    for _, _, instructions in functions:
        name_jumps(instructions)
    return functions


def name_jumps(instructions):
    """Makes a BRA of each CALL that is only a jump. Code for sm_80 leaves loops by a CALL to the code after them; a function that
    returns is called after a MOV of the address that it returns to."""
    returns_to = {i.operands.rsplit(" ", 1)[-1] for i in instructions if i.base == "MOV"}
    for instruction in instructions:
        if instruction.base == "CALL" and instruction.target is not None and f"{instruction.address + BYTES:#x}" not in returns_to:
            instruction.base = instruction.opcode = "BRA"


def is_empty(instructions):
    """Tests whether a kernel has no code: it was not compiled for this architecture."""
    return {i.base for i in instructions} <= {"MOV", "LDC", "EXIT", "BRA", "NOP"}


def blocks_of(instructions):
    """The blocks of a function and their edges. BSYNC goes where the BSSY of its register says, by any way that reaches it."""
    leaders = {instructions[0].address}
    for here, behind in zip(instructions, [*instructions[1:], None]):
        if here.base in ("BRA", "BSSY") and here.target is not None:
            leaders.add(here.target)
        if behind and here.base in ENDS | {"BRA", "BSYNC"}:
            leaders.add(behind.address)
    blocks = []
    for instruction in instructions:
        if instruction.address in leaders:
            blocks.append(Block([]))
        blocks[-1].instructions.append(instruction)
    index = {block.instructions[0].address: i for i, block in enumerate(blocks)}

    waiting, known = [(0, ())], {}  # blocks to visit with the targets of their BSSYs
    while waiting:
        i, synchronised = waiting.pop()
        before = known.setdefault(i, set())
        if before and set(synchronised) <= before:
            continue
        before |= set(synchronised) | {None}
        targets = {pair for pair in before if pair}
        block = blocks[i]
        for instruction in block.instructions:
            if instruction.base == "BSSY":
                register = instruction.operands.split(",")[0]
                targets = {t for t in targets if t[0] != register} | {(register, instruction.target)}
        last, after = block.instructions[-1], []
        if last.base == "BRA" and last.target in index:
            after.append(index[last.target])
        elif last.base == "BSYNC":
            after += [index[target] for register, target in targets if register == last.operands and target in index]
        falls_through = not last.always() if last.base in ENDS | {"BRA"} else last.base != "BSYNC" or not after
        if falls_through and i + 1 < len(blocks):
            after.append(i + 1)
        block.after = sorted(set(block.after) | set(after))
        waiting += [(j, tuple(targets)) for j in block.after]
    return blocks


def order_of(blocks):
    """Reverse postorder of the blocks that can be reached."""
    order, seen, stack = [], {0}, [(0, iter(blocks[0].after))]
    while stack:
        i, rest = stack[-1]
        for j in rest:
            if j not in seen:
                seen.add(j)
                stack.append((j, iter(blocks[j].after)))
                break
        else:
            order.append(i)
            stack.pop()
    return order[::-1]


def loops_of(blocks):
    """{head: set of blocks} of the natural loops, and the place of every block in an order in which all else goes forward."""
    order = order_of(blocks)
    place = {block: i for i, block in enumerate(order)}
    before = {i: [] for i in order}
    for i in order:
        for j in blocks[i].after:
            before[j].append(i)
    dominator, changed = {order[0]: order[0]}, True
    while changed:
        changed = False
        for i in order[1:]:
            new = None
            for j in before[i]:
                if j in dominator:
                    new = j if new is None else common(dominator, place, new, j)
            if dominator.get(i) != new:
                dominator[i], changed = new, True
    loops = {}
    for i in order:
        for head in blocks[i].after:
            if not dominates(dominator, place, head, i):
                continue
            body, waiting = loops.setdefault(head, {head}), [i]
            while waiting:
                j = waiting.pop()
                if j not in body:
                    body.add(j)
                    waiting += before[j]
    return loops, place


def common(dominator, place, a, b):
    while a != b:
        if place[a] > place[b]:
            a = dominator[a]
        else:
            b = dominator[b]
    return a


def dominates(dominator, place, above, i):
    while place[i] > place[above]:
        i = dominator[i]
    return i == above


def cheapest(blocks, body, head, place, value, enough):
    """The cheapest way once around a loop, of those that have at least `enough` of the first of a block's two values and the
    most of the second; None if there is none.
    @param value block -> (first, second) @returns (instructions, indices of blocks)"""
    # Per block: what a way from the head through it has -> (cost, block before, what that had).
    best = {head: {}}
    gains = {i: value(blocks[i]) for i in body}
    gain = gains[head]
    best[head][min(gain[0], enough), gain[1]] = (blocks[head].cost(), None, None)
    end = {}
    for i in sorted(body, key=place.get):
        for j in blocks[i].after:
            for had, (cost, _, _) in best.get(i, {}).items():
                if j == head:
                    if had not in end or cost < end[had][0]:
                        end[had] = (cost, i, had)
                elif j in body and place[j] > place[i]:
                    gain = gains[j]
                    have, cost_there = (min(had[0] + gain[0], enough), had[1] + gain[1]), cost + blocks[j].cost()
                    there = best.setdefault(j, {})
                    if have not in there or cost_there < there[have][0]:
                        there[have] = (cost_there, i, had)
    ways = [(-have[1], cost, i, had) for have, (cost, i, had) in end.items() if have[0] >= enough]
    if not ways:
        return None
    _, cost, i, had = min(ways)
    way = []
    while i is not None:
        way.append(i)
        _, i, had = best[i][had]
    return cost, way[::-1]


def start_of(blocks, place, copy):
    """Instructions before the first copy, see the top; None if no way leads to one. @param copy its opcode"""
    best, found = {0: 0}, []
    for i in sorted(place, key=place.get):
        before = next((n for n, instruction in enumerate(blocks[i].instructions) if (instruction.opcode + ".").startswith(copy + ".")), None)
        passed = Block(blocks[i].instructions[:before])
        if i not in best or passed.count("CALL"):
            continue
        cost = best[i] + len(passed.instructions)
        if before is not None:
            found.append(cost)
        else:
            for j in blocks[i].after:
                if place[j] > place[i]:
                    best[j] = min(best.get(j, cost), cost)
    return min(found, default=None)


def cheapest_way(blocks, starts, steps):
    """Instructions of the cheapest way that begins with one of the blocks `starts` and passes one of each of the steps in their order; None if there is
    none. @param steps block -> whether it is one"""
    waiting = [(0, i, 0) for i in starts]
    seen = set()
    while waiting:
        cost, i, passed = heapq.heappop(waiting)
        if (i, passed) in seen:
            continue
        seen.add((i, passed))
        cost += blocks[i].cost()
        while passed < len(steps) and steps[passed](blocks[i]):
            passed += 1
        if passed == len(steps):
            return cost
        for j in blocks[i].after:
            heapq.heappush(waiting, (cost, j, passed))
    return None


def loads_state(block):
    return block.count("LDG.E.128.STRONG.GPU", "LDG.E.64.STRONG.GPU") > 0


def merges_state(block):
    return min(block.count("FMUL"), block.count("FADD")) >= 3


def exits(block):
    return block.count("EXIT") > 0


def end_of(blocks, walk):
    """Instructions from a walk to the exit. @param walk its blocks"""
    outside = [Block([]) if i in walk else block for i, block in enumerate(blocks)]
    return cheapest_way(outside, [j for i in walk for j in blocks[i].after if j not in walk], [exits])


def combining(instructions):
    """Instructions of a kernel that combines, see the top."""
    blocks = blocks_of(instructions)
    loops, place = loops_of(blocks)
    around = [(len(body), head) for head, body in loops.items() if any(loads_state(blocks[i]) for i in body) and any(merges_state(blocks[i]) for i in body)]
    way = around and cheapest(blocks, loops[min(around)[1]], min(around)[1], place, lambda block: (loads_state(block) + 100 * merges_state(block), 0), 101)
    return {"least": cheapest_way(blocks, [0], [loads_state, merges_state, lambda block: block.count("STG") > 0, exits]), "group": way[0] if way else None,
            "kernel_bytes": BYTES * len(instructions)}


class Worker:
    """Instructions of a pass of a worker, by the name of its kernel."""

    SCALAR = re.compile(r"ScalarWarp<(?:\w+::)*(\w+), (\d+)>")
    TILE = re.compile(r"MmaTile<(?:\w+::)*(\w+), (\d+), (\d+)(?:, (\d+))?>")
    LATENT = re.compile(r"LatentTile<(?:\w+::)*(\w+), (\d+)>")
    WGMMA = re.compile(r"WgmmaTile<(?:\w+::)*(\w+), (\d+)>")

    def __init__(self, name):
        self.name, self.product = "", "HMMA"
        self.is_scalar = False
        self.weights = 1  # blocks that make weights, of a full tile
        self.copies = True  # whether the warp that makes weights copies too
        if match := self.SCALAR.search(name):
            size, dim = 4 if match[1] == "float" else 2, int(match[2])
            row = min(dim, LONGEST_ROW)
            self.name, self.is_scalar = match[0], True
            self.of_keys, self.of_values = KEYS_PER_STEP * row // WARP, KEYS_PER_STEP * dim // WARP  # multiplications of a step
            self.leaf_bytes = 2 * LEAF_KEYS * row * size
        elif match := self.LATENT.search(name):
            # Of 64 x 16 x rows, of two boxes of components: four steps of three parts; and of a row of keys.
            self.name, self.product, self.least, self.of_keys, self.leaf_bytes = match[0], "HGMMA", 2 * 4 * 3, LONGEST_ROW // 16, LEAF_KEYS * LONGEST_ROW * 2
            self.copies = False
        elif match := self.WGMMA.search(name):
            dim = int(match[2])
            self.name, self.product = match[0], "HGMMA"
            # Of 64 x 64 x 16 of scores, and of 64 x dim x 16 of values: four steps of three parts. Weights of 32 queries, and of 32 more.
            self.least, self.leaf_bytes, self.weights = dim // 16 + 4 * 3, LEAF_KEYS * dim * 2 * 2, 2
        elif match := self.TILE.search(name):
            dim, warps = int(match[2]), int(match[4] or 1)
            keys = dim if warps == 1 else 576  # elements of a row
            self.name = match[0].replace(", 1>", ">")
            # Of 16 x 8 x 16, of one warp: keys / 4 of scores, dim / 2 of values in two parts, or in three by four warps.
            self.least = (keys // 4 + dim // 2) if warps == 1 else (keys // 4 + 3 * dim // 4) // warps
            self.leaf_bytes = LEAF_KEYS * (keys + (dim if warps == 1 else 0)) * 2  # where values may be in the keys, of the keys


def walks_of(name, instructions):
    """The walks of a kernel, see the top. @param name as C++ has it"""
    worker = Worker(name)
    if not worker.name:
        return []
    blocks = blocks_of(instructions)
    loops, place = loops_of(blocks)
    if worker.is_scalar:
        return scalar_walks(worker, blocks, loops, place, instructions)

    def is_walk(body):
        return (not worker.copies or makes_weights(body)) and sum(blocks[b].count(worker.product) for b in body) >= worker.least

    def makes_weights(body):
        return any(blocks[b].makes_weights() for b in body)

    bodies = {head: body for head, body in loops.items() if is_walk(body)}
    walks = []
    for head, body in bodies.items():
        if any(other < body for other in bodies.values()):
            continue
        copies = copies_of(blocks, body)
        if copies is None and worker.copies:
            raise ValueError(f"{name}: the walk at {blocks[head].instructions[0].address:#x} copies no rows")

        def n_copies(block):
            return block.count(copies) if worker.copies else 0

        def weight(block):
            # Weights outweigh all multiplications, so that enough of the sum has both.
            return block.count(worker.product) + (1000 if block.makes_weights() else 0)

        enough = worker.least + (1000 * worker.weights if makes_weights(body) else worker.of_keys)
        one = cheapest(blocks, body, head, place, lambda b: (weight(b), n_copies(b)), enough)
        end = cheapest(blocks, body, head, place, lambda b: (weight(b), -10000 if b.caps_scores() else 1000 * n_copies(b) + of_states(b, SLOT_KEYS + 1)), enough)
        if one is None:
            raise ValueError(f"{name}: no way around the loop at {blocks[head].instructions[0].address:#x} does the work of a pass; is a part of it a loop?")
        walks.append(walk_of(worker, blocks, place, body, instructions, one[0], (one[0] + end[0]) / 2, {*one[1], *end[1]}))
        if worker.weights > 1:
            half = cheapest(blocks, body, head, place, lambda b: (weight(b), n_copies(b)), worker.least + 1000)
            walks.append(walk_of(worker, blocks, place, body, instructions, half[0], half[0] + (end[0] - one[0]) / 4, {*half[1]}))
            walks[-1]["rows"] += ", 32 queries"
    return sorted(walks, key=lambda walk: walk["rows"])


def copies_of(blocks, body):
    """The opcode of the copies in a loop; None if there is none."""
    return next((opcode for opcode in COPIES if any(blocks[b].count(opcode) for b in body)), None)


def of_states(block, fewest=FEWEST_PRODUCTS):
    """Multiplications and stores of a block that is about a state. @param fewest multiplications that it has"""
    n, stores = block.count("FMUL"), block.count("ST", "STG", "STS")
    return (n if n >= fewest else 0) + (stores if stores >= FEWEST_STORES else 0)


def walk_of(worker, blocks, place, body, instructions, one, per_leaf, hot):
    """Returns what the tables have of a walk. @param body its loop @param one instructions of a pass @param hot its blocks"""
    copies = copies_of(blocks, body)
    rows = COPIES.get(copies, "multiplies keys" if worker.product == "HGMMA" else "loaded")
    return {"worker": worker.name, "rows": rows, "start": start_of(blocks, place, copies) if copies else None,
            "pass": one, "leaf": round(per_leaf), "per_8_kib": round(per_leaf * 8192 / worker.leaf_bytes),
            "hot_bytes": BYTES * sum(len(blocks[b].instructions) for b in hot),
            "loop_bytes": BYTES * sum(len(blocks[b].instructions) for b in body),
            "kernel_bytes": BYTES * len(instructions), "exit": end_of(blocks, body)}


def scalar_walks(worker, blocks, loops, place, instructions):
    """The walks of a kernel on scalar cores: loops over leaves that hold a loop over eight keys, with shuffles, and one over their values. In the
    former a dot product is a loop too, which is counted as often as the longest row takes."""
    def count(body, opcode):
        return sum(blocks[b].count(opcode) for b in body)

    def smallest(bodies):
        return {head: body for head, body in bodies.items() if not any(other < body for other in bodies.values())}

    keys = smallest({head: body for head, body in loops.items() if count(body, "SHFL") >= KEYS_PER_STEP and count(body, "FMUL") >= KEYS_PER_STEP})
    values = smallest({head: body for head, body in loops.items() if count(body, "SHFL") == 0 and count(body, "FMUL") >= worker.of_values})
    walks = []
    for head, body in smallest({head: body for head, body in loops.items() if any(of < body for of in keys.values()) and any(of < body for of in values.values())}).items():
        copies = copies_of(blocks, body)

        def value(block):
            return block.times * block.count("FMUL"), block.count(copies) if copies else 0

        def way_around(bodies, least):
            inner, = (other for other in bodies if bodies[other] < body)
            for dot, of in smallest({other: of for other, of in loops.items() if of < bodies[inner] and count(of, "FMUL") >= KEYS_PER_STEP}).items():
                round_of = cheapest(blocks, of, dot, place, lambda b: (b.count("FMUL"), 0), KEYS_PER_STEP)
                products = sum(blocks[b].count("FMUL") for b in round_of[1])
                for b in of:
                    blocks[b].times = -(-least // products)
            way = cheapest(blocks, bodies[inner], inner, place, value, least)
            if way is None:
                raise ValueError(f"{worker.name}: no way around the loop at {blocks[inner].instructions[0].address:#x} does the work of a step")
            return way, bodies[inner]

        (of_keys, key_loop), (of_values, value_loop) = way_around(keys, worker.of_keys), way_around(values, worker.of_values)
        inside, one = key_loop | value_loop, of_keys[0] + of_values[0]
        for i in inside:
            blocks[i].times = 0
        least = cheapest(blocks, body, head, place, lambda b: (0, 0), 0)
        end = cheapest(blocks, body, head, place, lambda b: (0, of_states(b) if b.times else 0), 0)
        for i in inside:
            blocks[i].times = 1
        per_leaf = LEAF_KEYS // KEYS_PER_STEP * one + (least[0] + end[0]) / 2
        hot = {*of_keys[1], *of_values[1], *({*least[1], *end[1]} - inside)}
        walks.append(walk_of(worker, blocks, place, body, instructions, one, per_leaf, hot))
    return sorted(walks, key=lambda walk: walk["rows"])


def compiler():
    """nvcc and its version."""
    printed = subprocess.run([toolkit.nvcc(), "--version"], capture_output=True, text=True, check=True).stdout if toolkit.nvcc() else ""
    version = re.search(r"V([\d.]+)", printed)
    return f"nvcc {version[1]}" if version else "nvcc"


def walks_of_object(file, tool, wanted):
    """The walks of the kernels of an object file whose readable name matches `wanted`, what combines, and a line for each of these kernels
    that has code but no walk, and for every kernel that the compiler got wrong."""
    walks, combines, without = [], [], []
    printed = [subprocess.run([tool, option, file], capture_output=True, text=True, check=True).stdout for option in ("-sass", "-res-usage")]
    functions = functions_of(printed[0])
    used, architecture = {}, ""
    for line in printed[1].splitlines():
        if line.startswith("arch = "):
            architecture = line.split()[-1]
        elif match := re.match(r"\s*Function (\S+?):?\s*$", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+)", line):
            used[architecture, name] = [int(n) for n in match.groups()]
    names = resources.readable(sorted({name for _, name, _ in functions}))
    for architecture, name, instructions in functions:
        if any(i.opcode.startswith("VIMNMX.RELU") and WRONG_CLAMP.match(i.operands) for i in instructions):
            without.append(f"{names[name]} for {architecture}: a clamp whose predicate is wrong, see WRONG_CLAMP; ask x >= n instead")
        registers, stack = used[architecture, name]
        if COMBINES.search(names[name]):
            tile = Worker.TILE.search(names[name])
            kernel = names[name].split("<")[0].split("(")[0] + (", listed leaves" if "ListedParams" in names[name] else "")
            combines.append({"kernel": kernel, "architecture": architecture, "worker": tile[0].replace(", 1>", ">") if tile else ""} | combining(instructions) | {"registers": registers, "stack": stack})
        if not re.search(wanted, names[name]) or is_empty(instructions):
            continue
        found = walks_of(names[name], instructions)
        if not found:
            without.append(f"{names[name]} for {architecture}: no walk among its {len(instructions)} instructions")
        for walk in found:
            kernel = names[name].split("<")[0] + (", listed leaves" if "ListedParams" in names[name] else "")
            walks.append({"kernel": kernel, "architecture": architecture} | walk | {"registers": registers, "stack": stack})
    return walks, combines, without


def walks_in(objects, tool, wanted):
    """Returns what walks_of_object finds in all object files, in order of kernel, architecture, worker and rows."""
    with concurrent.futures.ProcessPoolExecutor() as pool:
        found = list(pool.map(walks_of_object, objects, [tool] * len(objects), [wanted] * len(objects)))
    walks, combines, without = ([line for lines in lists for line in lines] for lists in zip(*found))
    # Without a tile what combines is in several objects.
    return sorted(walks, key=key_of), sorted((one for i, one in enumerate(combines) if one not in combines[:i]), key=key_of), without


def key_of(walk):
    return [walk.get(name, "") for name in ("kernel", "architecture", "worker", "rows")]


def changes(walks, recorded):
    """Walks, and what combines, that only one of two lists has, and those whose instructions per leaf, before the first copy, or at the
    end differ by more than MOST_CHANGE. What only one of the two was compiled for says nothing."""
    def counts(these, others, what):
        found = {}
        for walk in these:
            if any(walk["architecture"] == other["architecture"] for other in others):
                found.setdefault(tuple(key_of(walk)), []).append(walk.get(what) or 0)
        return {key: sorted(numbers) for key, numbers in found.items()}

    found = []
    for what, words in (("leaf", "per leaf"), ("start", "before the first copy"), ("exit", "to the exit"), ("least", "for one state"),
                        ("group", "for eight units")):
        now, before = counts(walks, recorded, what), counts(recorded, walks, what)
        for key in sorted(now.keys() | before.keys()):
            a, b = now.get(key, []), before.get(key, [])
            if len(a) != len(b) or any(abs(x - y) > MOST_CHANGE * y for x, y in zip(a, b)):
                found.append(f"{', '.join(key)}: {a} instructions {words}, recorded are {b}")
    return found


def table(walks, combines):
    rows = ["| kernel | architecture | worker | rows by | start | pass | leaf of 64 keys | exit | per 8 KiB | hot code, KiB | loop, KiB | kernel, KiB | registers |",
            "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for w in walks:
        sizes = " | ".join(f"{w[key] / 1024:.1f}" for key in ("hot_bytes", "loop_bytes", "kernel_bytes"))
        rows.append(f"| {w['kernel']} | {w['architecture']} | {w['worker']} | {w['rows']} | {w['start'] or ''} | {w['pass']} | {w['leaf']} | {w['exit'] or ''} | {w['per_8_kib']} | {sizes} | {w['registers']} |")
    rows += ["", "| kernel | architecture | one state | eight units | kernel, KiB | registers |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    rows += [f"| {c['kernel']} | {c['architecture']} | {c['least']} | {c['group']} | {c['kernel_bytes'] / 1024:.1f} | {c['registers']} |" for c in combines]
    return rows


def problems_of(walks, most_kib, wanted):
    problems = [f"{w['kernel']} for {w['architecture']}, {w['worker']}, {w['rows']}: {w['hot_bytes'] / 1024:.1f} KiB of hot code, of at most {most_kib}"
                for w in walks if w["hot_bytes"] > 1024 * most_kib]
    return problems or ([] if walks else [f"there is no walk in any kernel named like '{wanted}'"])


def torn_packets(functions):
    """(kernels of one-shot, what is wrong in them): packets are stored and loaded by STG and LDG of 128 bits at system scope. Of other accesses at that
    scope there are loads of 32 bits alone, of the word by which the host ends a wait."""
    kernels, problems = 0, []
    for architecture, name, code in functions:
        if not ONE_SHOT.search(name):
            continue
        kernels += 1
        at_system = [i.opcode for i in code if ".SYS" in i.opcode and i.base in ("ST", "STG", "LD", "LDG", "ATOM", "ATOMG", "RED", "REDG")]
        problems += [f"{name} for {architecture}: no {opcode}" for opcode in PACKETS if opcode not in at_system]
        problems += [f"{name} for {architecture}: {opcode}" for opcode in sorted(set(at_system) - {*PACKETS, "LDG.E.STRONG.SYS"})]
    return kernels, problems


def check_packets(objects, tool):
    kernels, problems = 0, []
    for path in objects:
        printed = subprocess.run([tool, "-sass", path], capture_output=True, text=True, check=True).stdout
        of_object, wrong = torn_packets(functions_of(printed))
        kernels, problems = kernels + of_object, problems + wrong
    if kernels == 0:
        problems.append("there is no kernel of one-shot")
    print(f"{kernels} kernels of one-shot" + ("" if problems else f": packets by {' and '.join(PACKETS)} alone"))
    for problem in problems:
        print("instructions: " + problem, file=sys.stderr)
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    count = commands.add_parser("count")
    count.add_argument("--kernels", default="", help="pattern of the kernels that are counted; all if it is missing")
    count.add_argument("--most-kib", type=int, default=42, help="of hot code, per walk")
    count.add_argument("--json", help="file that the counts are written to")
    count.add_argument("--recorded", help="file that must have the same counts, if it was made by the same compiler")
    count.add_argument("objects", nargs="+")
    commands.add_parser("packets").add_argument("objects", nargs="+")
    asked = parser.parse_args()
    tool = toolkit.cuobjdump()
    if tool is None:
        print("instructions: skipped, no cuobjdump beside nvcc, in the PATH, by TREE_ATTN_CUOBJDUMP or in build-peers/toolkit/, where "
              "tests/gpu/toolkit.py install puts it")
        return SKIPPED
    if asked.command == "packets":
        return check_packets(asked.objects, tool)
    walks, combines, without = walks_in(asked.objects, tool, asked.kernels)
    print(*table(walks, combines), sep="\n")
    if asked.json:
        lines, of_combines = (",\n".join("  " + json.dumps(one) for one in these) for these in (walks, combines))
        Path(asked.json).write_text(f'{{"compiler": {json.dumps(compiler())}, "walks": [\n{lines}\n], "combines": [\n{of_combines}\n]}}\n', encoding="utf-8")
    problems = without + problems_of(walks, asked.most_kib, asked.kernels)
    if asked.recorded:
        recorded = json.loads(Path(asked.recorded).read_text(encoding="utf-8"))
        if recorded["compiler"] == compiler():
            problems += [f"{change} (ninja kernel_instructions writes {Path(asked.recorded).name})" for change in changes(walks + combines, recorded["walks"] + recorded.get("combines", []))]
        else:
            print(f"instructions: not compared with {Path(asked.recorded).name}, which is of {recorded['compiler']} and not of {compiler()}")
    for problem in problems:
        print("instructions: " + problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
