#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The builds of leaf_kernel.cpp share no symbol: the linker would keep one copy, perhaps one that this processor cannot run.
Nor do they use exponentials, logarithms or the like of the C library, whose bits differ between versions and processors.

leaf_symbols.py NM KERNEL=OBJECT ...: each object file may define one symbol for others, tree_attn::KERNEL
"""
import subprocess
import sys

# Data that the linker may merge: the address of the C++ runtime's handler, and the marks of AddressSanitizer.
HARMLESS = ("DW.ref.", "__odr_asan")


def shared(nm, path):
    """The global and weak symbols that an object file defines, demangled."""
    lines = subprocess.run([nm, "--extern-only", "--defined-only", "--demangle", path], check=True, capture_output=True, text=True)
    names = [line.split(maxsplit=2)[2] for line in lines.stdout.splitlines() if len(line.split()) > 2]
    return [name for name in names if not name.startswith(HARMLESS)]


def mathematics(nm, path):
    """The functions of the C library that an object file uses and that are not rounded correctly, as sqrt is."""
    lines = subprocess.run([nm, "--undefined-only", path], check=True, capture_output=True, text=True).stdout.split()
    stems = ("exp", "log", "pow", "sin", "cos", "tan", "erf")
    return [name for name in lines if name.lstrip("_").startswith(stems)]


def main():
    nm, *objects = sys.argv[1:]
    faults = []
    for argument in objects:
        kernel, path = argument.split("=", 1)
        names = shared(nm, path)
        if f"tree_attn::{kernel}" not in names:
            faults.append(f"{path} does not define tree_attn::{kernel}")
        faults += [f"{path} defines {name}" for name in names if name != f"tree_attn::{kernel}"]
        faults += [f"{path} uses {name}" for name in mathematics(nm, path)]
    print("\n".join(faults) if faults else f"{len(objects)} object files define one symbol each, and use no inexact mathematics of the C library")
    return 1 if faults or not objects else 0


if __name__ == "__main__":
    sys.exit(main())
