#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes on hosts made of network namespaces: what leaves their interfaces is what the report says, and nodes are found.

    hosts.py PROGRAM MPIRUN NCCL

NCCL is the library that stands in for it.

A host is a network namespace with a name of its own and one interface of 1 Gbit/s (veth, tbf; packets of up to
9000 bytes) on a bridge; Open MPI starts a
daemon on each. All of it lives in user, mount and process namespaces, needs no privileges, and disappears with the process
that made it. Status 77 with a reason where namespaces, ip, tc or Open MPI are missing.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "docs" / "tools"))
import many_gpus

SKIPPED, SECONDS = 77, 300
FIRST_HOUR = Path(__file__).resolve().parents[1] / "on_a_cluster" / "run"
NAMESPACES = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
HEADERS, CONTROL = 1.15, 4096  # the link carries at most HEADERS times the report, and CONTROL bytes more
# States of 33 KB. The measurement synchronizes ranks between steps, which takes about 15 KB on four hosts, also counted at the
# interfaces.
SHAPE = ["--seq-len", "512", "--batch", "4", "--heads", "16", "--head-dim", "128"]


def missing(mpirun):
    """Returns what this test needs and this machine does not have, or ""."""
    for tool in ("unshare", "ip", "tc"):
        if not shutil.which(tool):
            return f"{tool} is not installed (apt install util-linux iproute2)"
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:  # what Open MPI 4 calls its mpiexec
        return f"{mpirun} is not Open MPI's: no agent starts its daemons in namespaces"
    script = "mount -t tmpfs t /run && mkdir /run/netns && ip netns add h && ip link add name a type bridge && " \
             "ip link add name b type veth peer name c && tc qdisc add dev b root tbf rate 1gbit burst 64k latency 200ms"
    tried = subprocess.run([*NAMESPACES, "sh", "-ec", script], capture_output=True, text=True, timeout=30)
    return f"no network namespaces: {tried.stderr.strip().splitlines()[-1:]}" if tried.returncode else ""


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Cluster:
    """Hosts h1, h2, ... on a bridge, with this many ranks each."""

    def __init__(self, folder, mpirun, program, ranks_of_hosts):
        self.folder, self.mpirun, self.program, self.ranks_of_hosts = folder, mpirun, program, ranks_of_hosts
        run("ip", "link", "add", "name", "tree0", "type", "bridge")
        run("ip", "link", "set", "dev", "tree0", "up")
        run("ip", "addr", "add", "10.77.0.1/24", "dev", "tree0")
        for i, _ in enumerate(ranks_of_hosts, 1):
            run("ip", "netns", "add", f"h{i}")
            run("ip", "link", "add", "name", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", f"h{i}")
            run("ip", "link", "set", "dev", f"port{i}", "mtu", "9000", "master", "tree0", "up")
            run("ip", "-n", f"h{i}", "link", "set", "dev", "lo", "up")
            run("ip", "-n", f"h{i}", "link", "set", "dev", "eth0", "mtu", "9000", "up")
            run("ip", "-n", f"h{i}", "addr", "add", f"10.77.0.{10 + i}/24", "dev", "eth0")
            limit = "root tbf rate 1gbit burst 64k latency 200ms".split()
            run("tc", "-n", f"h{i}", "qdisc", "add", "dev", "eth0", *limit)
            run("tc", "qdisc", "add", "dev", f"port{i}", *limit)
        self.hostfile = folder / "hosts"
        self.hostfile.write_text("".join(f"h{i} slots={n}\n" for i, n in enumerate(ranks_of_hosts, 1)))
        # What Open MPI runs in place of ssh: AGENT HOST COMMAND...
        self.agent = folder / "agent"
        self.agent.write_text('#!/bin/sh\nhost=$1\nshift\nexec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n')
        self.agent.chmod(0o755)

    def close(self):
        for i, _ in enumerate(self.ranks_of_hosts, 1):
            run("ip", "netns", "del", f"h{i}")
            subprocess.run(["ip", "link", "del", f"port{i}"], capture_output=True)  # may be gone with its other end
        run("ip", "link", "del", "tree0")

    def bytes_sent(self):
        """By all hosts, counted at the ports of the bridge."""
        lines = Path("/proc/net/dev").read_text().splitlines()
        return sum(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("port"))

    def launch(self):
        """Returns what starts a program on these hosts, without how many ranks."""
        network = "10.77.0.0/24"
        options = {"plm_rsh_agent": self.agent, "orte_tmpdir_base": self.folder, "oob_tcp_if_include": network,
                   "btl": "self,vader,tcp", "btl_tcp_if_include": network, "mpi_yield_when_idle": 1}
        words = [self.mpirun, "--allow-run-as-root", "--hostfile", self.hostfile, "--bind-to", "none", "--oversubscribe"]
        for name, value in options.items():
            words += ["--mca", name, str(value)]
        return words

    def __call__(self, *arguments, start=()):
        """Runs the program on all hosts, on as many ranks as they have or as options of mpirun say. Returns what it printed."""
        ended = subprocess.run([*self.launch(), *(start or ["-n", str(sum(self.ranks_of_hosts))]), self.program, *arguments],
                               capture_output=True, text=True, timeout=60)
        if ended.returncode:
            raise SystemExit(f"{' '.join(arguments)}: status {ended.returncode}\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    def decode(self, algorithm, repeat=1):
        report = self.folder / "report.json"
        self("decode", *SHAPE, "--algorithm", algorithm, "--repeat", str(repeat), "--report", str(report))
        return json.loads(report.read_text())["runs"][0]


def check(holds, line):
    print(("ok    " if holds else "WRONG ") + line, flush=True)
    return holds


def check_bytes(cluster, algorithm, n_steps):
    """Returns what a step sends over the interfaces: the difference of two runs, so that their starts and ends cancel."""
    before = cluster.bytes_sent()
    cluster.decode(algorithm)
    between = cluster.bytes_sent()
    run = cluster.decode(algorithm, 1 + n_steps)
    link = (cluster.bytes_sent() - between - (between - before)) / n_steps
    report = run["bytes_between_nodes_per_step"]
    line = f"{algorithm}: report {report}, interfaces {link:.0f} bytes per step, {link / report:.3f}; {run['nodes']} nodes"
    return check(report <= link <= HEADERS * report + CONTROL and run["nodes"] == 4, line)


def check_chapter(cluster, nccl):
    """The hostfile's command of the chapter on many GPUs, with emulated ones: ranks per host, no number of ranks, and the digest of its rehearsal on one host."""
    command = next(line for line in many_gpus.commands(many_gpus.CHAPTER.name) if "--hostfile" in line)
    launcher, _, decode = many_gpus.rehearsed(command).partition(" build/tree_attn ")
    arguments = shlex.split(decode)
    at = arguments.index("--ranks-per-node")
    del arguments[at:at + 2]
    start = shlex.split(launcher.replace("ppr:4", "ppr:2"))
    start = start[start.index("--map-by"):]
    os.environ["TREE_ATTN_NCCL_LIBRARY"] = nccl
    printed = cluster(*arguments, start=[*start, "-x", "TREE_ATTN_NCCL_LIBRARY"])
    found = printed.splitlines()[0].partition("; ")[2]
    good = check(found == "8 ranks on 4 nodes, backend emulated, transport nccl", f"{' '.join(start)}: {found}")
    digests = set(re.findall(r" yes +([0-9a-f]{16})$", printed, re.MULTILINE))
    rehearsal = many_gpus.output_of(many_gpus.rehearsed(command), cluster.program, cluster.mpirun, nccl)
    return check(len(digests) == 1 and digests.pop() in rehearsal, "the digest of the rehearsal") and good


def check_uneven(cluster):
    """Hosts of 3, 2 and 1 ranks are found, and keep the bits of one rank."""
    printed = cluster("info")
    alone = cluster.folder / "alone.json"
    run(cluster.program, "decode", *SHAPE, "--report", str(alone))
    digests = {json.loads(alone.read_text())["runs"][0]["output_digest"]}
    decoded = cluster.decode("two-level")
    digests.add(decoded["output_digest"])
    found = [line for line in printed.splitlines() if line.startswith("ranks")]
    good = check(found == ["ranks          6 on 3 nodes (3, 2, 1 per node)"] and decoded["nodes"] == 3, f"uneven hosts: {found}")
    # Facts come from all hosts: ranks, interfaces, and the one that NCCL's bootstrap would use.
    rows = [re.split(r"\s{2,}", line) for line in printed.splitlines() if re.match(r"\d", line)]
    facts = [(row[1], row[2], "eth0" in row[4]) for row in rows]
    good &= check(facts == [("h1", "0-2", True), ("h2", "3, 4", True), ("h3", "5", True)], f"uneven hosts: facts {facts}")
    return check(len(digests) == 1, f"uneven hosts: digests {sorted(digests)}") and good


def check_first_hour(cluster):
    """The first hour on a cluster, on two hosts: nodes that are found, bytes between them, and ranks that fail."""
    launch = " ".join(map(str, [*cluster.launch(), "-n", "{ranks}", "--map-by", "ppr:{per}:node", "-x", "TREE_ATTN_NCCL_LIBRARY"]))
    ended = subprocess.run([FIRST_HOUR, "--nodes", "2", "--ranks-per-node", "2", "--launch", launch, "--program", cluster.program, "--backend", "emulated", "--rehearse", "--patience", "5",
                            "--stages", "0,2,5,6", "--limits", "3", "--out", cluster.folder / "first"], capture_output=True, text=True)
    print(*[line for line in ended.stdout.splitlines() if ended.returncode or "WRONG" in line], ended.stderr, sep="\n", end="")
    return check(ended.returncode == 0, "the first hour on a cluster")


def make_private():
    """In namespaces of its own: /run for the names of namespaces, /dev/shm for MPI's shared memory, and a loopback."""
    for place in ("/run", "/dev/shm"):
        run("mount", "-t", "tmpfs", "tmpfs", place)
    os.mkdir("/run/netns")
    run("ip", "link", "set", "dev", "lo", "up")


def inside(folder, program, mpirun, nccl):
    make_private()
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TMPDIR=str(folder))
    good = True
    four = Cluster(folder, mpirun, program, [2, 2, 2, 2])
    for algorithm, n_steps in (("two-level", 40), ("ring", 3)):
        good &= check_bytes(four, algorithm, n_steps)
    good &= check_chapter(four, nccl) and check_first_hour(four)
    four.close()
    good &= check_uneven(Cluster(folder, mpirun, program, [3, 2, 1]))
    return 0 if good else 1


def in_namespaces(script, namespaces, seconds, missing_here, inside_it):
    """Runs a script of three arguments again, in namespaces and with a temporary folder; what it does there is inside_it()."""
    if sys.argv[1] == "inside":
        return inside_it(Path(sys.argv[2]), *sys.argv[3:])
    program, mpirun, nccl = (str(Path(path).resolve()) if "/" in path else path for path in sys.argv[1:])
    if why := missing_here(mpirun):
        print("skipped:", why)
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        words = [*namespaces, sys.executable, script, "inside", folder, program, mpirun, nccl]
        # Killing unshare ends every process in its namespaces.
        try:
            return subprocess.run(words, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            print(f"not done after {seconds} s")
            return 1


if __name__ == "__main__":
    sys.exit(in_namespaces(__file__, NAMESPACES, SECONDS, missing, inside))
