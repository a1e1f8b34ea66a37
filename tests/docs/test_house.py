#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/house.py: each rule finds what breaks it, and nothing else."""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import house

# Enough of a house for every rule: seven algorithms, eight kernels.
GROUND = {
    "reference/state/state.hpp": "#pragma once\n\n#include <cmath>\n",
    "reference/energy/energy.hpp": "#pragma once\n\n#include <Eigen/Core>\n\n#include <cmath>\n",
    "distributed/decoders/decoder.cpp": "".join(f'    {{"{name}", "brief"}},\n' for name in "abcdef") + '    {"ring", "brief"},\n',
    "gpu/ladder/ladder.cu": "".join(f'{{.name = "step-{name}"}},\n' for name in "abcdef"),
    "gpu/engine/launch.cu": '{.name = "equal-runs"},\n{.name = "short-end"},\n',
}


class House(unittest.TestCase):
    def faults(self, files, known=None):
        """What the check says of the ground with these files."""
        files = GROUND | files
        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                house, ROOT=pathlib.Path(folder), KNOWN=known or {}, faults=[], broken=set()):
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            house.check(sorted(files))
            return house.faults

    def test_the_ground_stands(self):
        self.assertEqual(self.faults({}), [])

    def test_each_rule_finds_what_breaks_it(self):
        upwards = '#include "tree_attn/gpu/ladder/ladder.hpp"\n'
        for name, text, said in (
                ("gpu/engine/launch.hpp", upwards, "gpu/engine may not include gpu/ladder/ladder.hpp"),
                ("gpu/loose.hpp", "\n", "lies in no sub-room"),
                ("reference/decode/decode.hpp", '#include "tree_attn/reference/energy/energy.hpp"\n', "brings Eigen, which nothing here may need"),
                ("reference/data/file.cpp", "#include <mpi.h>\n", "<mpi.h> is not for reference/data"),
                ("reference/data/file.cpp", '#include <array>\n\n#include "tree_attn/reference/state/state.hpp"\n', "stands after"),
                ("reference/data/file.cpp", "#include <vector>\n#include <array>\n", "sorted block"),
                ("tests/gpu/a.cpp", "// see elsewhere.hpp\n", " names elsewhere.hpp"),
                ("gpu/engine/a.hpp", "// behind it\n", "'behind' in a comment"),
                ("tests/gpu/a.cpp", 'if (algorithm.name == "ring") return;\n', "ring"),
                ("tests/gpu/a.cpp", 'TEST_CASE("a: b; c") {\n', "semicolon"),
                ("tests/gpu/a.cpp", 'TEST_CASE(\n    "a: b") {\n', "too long"),
                ("reference/state/forest.hpp", "#if defined(__CUDA_ARCH__)\n#endif\n", "the same on hosts and devices"),
                ("distributed/decoders/decoder.cpp", "", "does not know the registry any more")):
            with self.subTest(text):
                self.assertIn(said, "\n".join(self.faults({name: text})))

    def test_what_breaks_none(self):
        for name, text in (("gpu/backend/cache.hpp", '#include "tree_attn/gpu/ladder/ladder.hpp"\n'), ("tests/gpu/a.cpp", '// see state/state.hpp\nCHECK(find("ring").name == "ring");\n'),
                           ("gpu/engine/a.hpp", 'fail("a text that no test knows");\n'), ("gpu/engine/forest.cuh", "#if defined(__CUDA_ARCH__)\n#endif\n")):
            self.assertEqual(self.faults({name: text}), [], text)

    def test_known_exceptions(self):
        known = {("arrow", "gpu/engine/launch.hpp", "gpu/ladder/ladder.hpp"): "reason"}
        self.assertEqual(self.faults({"gpu/engine/launch.hpp": '#include "tree_attn/gpu/ladder/ladder.hpp"\n'}, known), [])
        self.assertIn("no longer so", self.faults({}, known)[0])


if __name__ == "__main__":
    unittest.main()
