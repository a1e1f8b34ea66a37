#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes under srun: on two nodes of a private Slurm, srun starts what mpirun starts, and a rank that stops ends the job.

    slurm.py PROGRAM MPIRUN NCCL

NCCL is the library that stands in for it.

The nodes are the hosts of hosts.py, each with a slurmd, and eight GPUs that are /dev/null; munged and slurmctld run beside
them. Their configuration, keys, sockets and logs are in a temporary folder. All processes are in network, mount and process namespaces, where
no other Slurm can be reached, and end with the process that made them. Status 77 with a reason where Slurm 22.05 or later with
PMIx, munge, root's rights or Open MPI are missing.
"""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import hosts
from hosts import SHAPE, SKIPPED, check, many_gpus, run

SECONDS, START = 150, 20
# slurmctld changes its groups, which a user namespace does not allow.
NAMESPACES = [word for word in hosts.NAMESPACES if word not in ("--user", "--map-root-user")] + ["--uts"]
PMIX = "--mpi=pmix"
NO_PMI = 'launched using "srun"'  # what Open MPI says when it is started by srun and finds no PMI that it was built for
CONFIGURATION = """\
ClusterName=tree
SlurmctldHost=h0(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=2
SchedulerParameters=sched_interval=2
NodeName=h1 NodeAddr=10.77.0.11 CPUs=16 Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 Gres=gpu:8
NodeName=h2 NodeAddr=10.77.0.12 CPUs=16 Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 Gres=gpu:8
PartitionName=all Nodes=h1,h2 Default=YES State=UP
"""


def missing(mpirun):
    """Returns what this test needs and this machine does not have, or ""."""
    for tool in ("srun", "slurmctld", "slurmd", "munged"):
        if not shutil.which(tool):
            return f"{tool} is not installed (apt install slurm-wlm)"
    if os.geteuid() != 0:
        return "only root starts Slurm's daemons"
    if why := hosts.missing(mpirun):
        return why
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, timeout=30)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Slurm:
    """Two nodes, h1 and h2."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        for name in ("state", "spool.h1", "spool.h2", "tmp.h1", "tmp.h2"):
            (folder / name).mkdir()
        for i in range(8):
            (folder / f"gpu{i}").symlink_to("/dev/null")
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(folder=folder))
        (folder / "gres.conf").write_text(f"NodeName=h[1-2] Name=gpu File={folder}/gpu[0-7]\n")
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # which does nothing here: no plugin uses it
        os.environ["SLURM_CONF"] = str(configuration)

        self.start("munged", "--foreground", "--force", "--num-threads", "2", "--socket", folder / "munge.socket", "--key-file", key,
                   "--pid-file", folder / "munged.pid", "--log-file", folder / "munged.log", "--seed-file", folder / "munge.seed")
        self.wait_for(lambda: (folder / "munge.socket").exists(), "munged")
        self.start("slurmctld", "-D", "-f", configuration)
        # A name for each: Open MPI 4 names the shared memory of a rank by host, job and rank on the node, so ranks of two nodes that have one
        # name and one /dev/shm write into the same memory. Each program of MPI then ends with SIGSEGV, or never.
        for host in ("h1", "h2"):
            named = ["ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
            self.start(*named, "slurmd", "-D", "-f", configuration, "-N", host)
        self.wait_for(lambda: subprocess.run(["sinfo", "--noheader", "--format=%T %D"], capture_output=True, text=True).stdout == "idle 2\n",
                      "its nodes")

    def start(self, *words):
        with open(self.folder / "daemons.log", "a", encoding="utf-8") as log:
            self.daemons.append(subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def wait_for(self, is_ready, what):
        end = time.monotonic() + START
        while not is_ready():
            if time.monotonic() > end:
                logs = "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))
                raise SystemExit(f"the private Slurm did not start: {what} not ready after {START} s\n{logs[-4000:]}")
            time.sleep(0.1)

    def close(self):
        # Nothing of them is kept, and a slurmd that was asked to end once took more than 10 s.
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()


def srun(*words, **options):
    """Two ranks on each of two nodes, unless the words say otherwise."""
    words = words if "-N" in words or "--nodes=2" in words else ("--nodes=2", "--ntasks-per-node=2", *words)
    return subprocess.run(["srun", *words], **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 40, **options})


def own_lines(ended):
    """Lines of the program on standard error."""
    return [line for line in ended.stderr.splitlines() if line.startswith("tree_attn: ")]


def left():
    """Returns what a job has left: processes of the program, and names of its shared memory, which are removed for the next check."""
    names = list(Path("/dev/shm").glob("tree_attn*"))
    for name in names:
        name.unlink()
    return [line for line in run("ps", "-e", "-o", "comm,args").splitlines() if line.startswith("tree_attn ")] + [name.name for name in names]


def check_chapter(program, mpirun, nccl):
    """The command of the chapter, with emulated GPUs and two ranks on a node, prints what its rehearsal by mpirun prints."""
    command = next(line for line in many_gpus.commands(many_gpus.CHAPTER.name) if line.startswith("srun "))
    words = [program if word == "build/tree_attn" else word for word in shlex.split(many_gpus.on_emulated(command))]
    ended = srun(*words[1:])
    printed = ended.stdout
    first = printed.partition("\n")[0].partition("; ")[2]
    good = check(ended.returncode == 0 and first == "4 ranks on 2 nodes, backend emulated, transport nccl", f"{' '.join(words[:5])}: {first}")
    if not good:
        print(ended.stderr)
    rehearsal = many_gpus.output_of(many_gpus.rehearsed(command), program, mpirun, nccl)
    return check(many_gpus.without_times(printed) == many_gpus.without_times(rehearsal), "the table and the digest of the rehearsal") and good


def check_readme(folder, program):
    """The command of README keeps the bits of one rank, also if the nodes have different numbers of ranks."""
    readme = (many_gpus.ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^(srun .*) build/tree_attn decode \.\.\.", readme, re.MULTILINE)[1]
    reports = {}
    def decode(name, *start):
        report = folder / f"{name}.json"
        subprocess.run([*start, program, "decode", *SHAPE, "--report", report], check=True, capture_output=True, timeout=60)
        reports[name] = json.loads(report.read_text())["runs"][0]
        return reports[name]["nodes"]
    nodes = (decode("alone"), decode("even", *shlex.split(command.replace("node 8", "node 2"))), decode("uneven", "srun", PMIX, "-N", "2", "-n", "3"))
    digests = {one["output_digest"] for one in reports.values()}
    good = check(nodes == (1, 2, 2), f"{command}: nodes {nodes}")
    return check(len(digests) == 1, f"one, four and three ranks: digests {sorted(digests)}") and good


def check_info(program):
    """Nodes and facts are found, and GPUs are seen by every rank of a node or hidden, as the chapter says."""
    ended = srun(PMIX, program, "info")
    found = [line for line in ended.stdout.splitlines() if line.startswith("ranks")]
    good = check(found == ["ranks          4 on 2 nodes (2, 2 per node)"], f"info: {found}")
    rows = [re.split(r"\s{2,}", line) for line in ended.stdout.splitlines() if re.match(r"\d", line)]
    facts = [(row[1], row[2], "eth0" in row[4]) for row in rows]
    good &= check(facts == [("h1", "0, 1", True), ("h2", "2, 3", True)], f"info: facts {facts}")
    for option, expected in (("--gpus-per-node=8", {"0,1,2,3,4,5,6,7"}), ("--gpus-per-task=2", {"0,1", "2,3"})):
        seen = set(srun(option, "printenv", "CUDA_VISIBLE_DEVICES").stdout.split())
        good &= check(seen == expected, f"{option}: a rank sees {sorted(seen)}")
    return good


def check_variables():
    """srun passes on the variables of the shell, and gives standard input to every rank."""
    printed = srun("sh", "-c", 'cat; echo " $TREE_ATTN_TEST"', stdin=None, input="in", env={**os.environ, "TREE_ATTN_TEST": "passed"}).stdout
    return check(printed == "in passed\n" * 4, f"standard input and variables: {printed.split()}")


def check_without_pmi(program):
    """Tests that no rank decodes by itself where srun and MPI have no PMI in common."""
    good = True
    for option in ([], ["--mpi=none"], ["--mpi=pmi2"]):
        ended = srun(*option, program, "decode", *SHAPE)
        left_here = left()
        refused = ended.stderr.count(NO_PMI) == 4 and ended.returncode == 1 or len(own_lines(ended)) == 1 and ended.returncode == 2
        line = f"srun {' '.join(option) or 'without --mpi'}: status {ended.returncode}, {ended.stderr.count(NO_PMI)} ranks say why, left {left_here}"
        good &= check(refused and ended.stdout == "" and not left_here, line)
    return good


def check_usage(program):
    """A wrong option ends with one line of the program, and its status passes through srun."""
    ended, left_here = srun(PMIX, program, "decode", "--no-such-option"), left()
    good = ended.returncode == 2 and len(own_lines(ended)) == 1 and not left_here
    return check(good, f"wrong option: status {ended.returncode}, {own_lines(ended)}, left {left_here}")


def check_ended_rank(program, signal_number, status, expected, latest):
    """A rank that is stopped or killed ends the job in time: the lines of the program, the status, nothing left."""
    words = ["srun", PMIX, "--nodes=2", "--ntasks-per-node=2", program, "decode", *SHAPE, "--repeat", "1000000", "--timeout", "3"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        rank_2, end = [], time.monotonic() + START
        while not rank_2 and time.monotonic() < end:
            time.sleep(0.1)
            rank_2 = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if is_rank(path.parent, 2)]
        time.sleep(1)  # in which the ranks start to decode
        began = time.monotonic()
        for process in rank_2:
            os.kill(process, signal_number)
        try:
            out, err = job.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            job.kill()
            out, err = job.communicate()
    seconds, left_here = time.monotonic() - began, left()
    lines = [line for line in err.splitlines() if line.startswith("tree_attn: ")]
    good = len(rank_2) == 1 and job.returncode == status and out == "" and re.fullmatch(expected, "\n".join(lines)) and not left_here
    name = signal.Signals(signal_number).name
    good = check(bool(good) and seconds < latest, f"{name} to rank 2: status {job.returncode} after {seconds:.1f} s, {lines}, left {left_here}")
    if not good:
        print(err)
    return good


def is_rank(process, rank):
    """Tests whether this process of /proc is the rank of a job."""
    try:
        return (process / "comm").read_text() == "tree_attn\n" and f"\0SLURM_PROCID={rank}\0" in (process / "environ").read_text()
    except OSError:
        return False


def inside(folder, program, mpirun, nccl):
    hosts.make_private()
    run("hostname", "h0")
    # What a job of a Slurm outside, in which this test may run, has set does not count.
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_", "PMI"))]:
        del os.environ[name]
    os.environ.update(TREE_ATTN_NCCL_LIBRARY=nccl, TMPDIR=str(folder), OMPI_MCA_mpi_yield_when_idle="1")
    machines = hosts.Cluster(folder, mpirun, program, [2, 2])
    slurm = Slurm(folder)
    types = srun("--mpi=list")
    if "pmix" not in types.stdout + types.stderr:
        print("skipped: this Slurm has no PMIx")
        return SKIPPED
    good = check_chapter(program, mpirun, nccl)
    good &= check_readme(folder, program)
    good &= check_info(program)
    good &= check_variables()
    good &= check_without_pmi(program)
    good &= check_usage(program)
    good &= check_ended_rank(program, signal.SIGSTOP, 2, r"tree_attn: rank 0 waited 3 s .*(\ntree_attn: rank \d waited 3 s .*)*", 12)
    good &= check_ended_rank(program, signal.SIGKILL, 137, "", 10)  # srun ends the others
    slurm.close()
    machines.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(hosts.in_namespaces(__file__, NAMESPACES, SECONDS, missing, inside))
