#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/house.py: each rule finds what breaks it, and nothing else."""
import pathlib
import shutil
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

    @unittest.skipUnless(shutil.which("git") and (house.ROOT / ".git").exists(), "there is no git to compare with")
    def test_files_without_git(self):
        with_git = house.tracked()
        with mock.patch.object(house.shutil, "which", return_value=None):
            self.assertEqual(house.sources(house.tracked()), house.sources(with_git))

    def test_an_arrow_up(self):
        text = '#include "tree_attn/gpu/ladder/ladder.hpp"\n'
        self.assertEqual(self.faults({"gpu/engine/launch.hpp": text}), ["gpu/engine/launch.hpp:1: gpu/engine may not include gpu/ladder/ladder.hpp"])
        self.assertEqual(self.faults({"gpu/backend/cache.hpp": text}), [])
        self.assertEqual(len(self.faults({"tests/reference/test_state.cpp": text})), 1)

    def test_a_file_outside_the_sub_rooms(self):
        self.assertIn("lies in no sub-room", self.faults({"gpu/loose.hpp": "\n"})[0])

    def test_eigen_by_a_detour(self):
        files = {"reference/decode/decode.hpp": '#include "tree_attn/reference/energy/energy.hpp"\n'}
        self.assertEqual(self.faults(files), ["reference/decode/decode.hpp:1: reference/energy/energy.hpp brings Eigen, which nothing here may need"])
        self.assertEqual(self.faults({"reference/decode/decode.cpp": '#include "tree_attn/reference/energy/energy.hpp"\n'}), [])

    def test_a_library_in_the_wrong_room(self):
        self.assertEqual(self.faults({"reference/data/file.cpp": "#include <mpi.h>\n"}), ["reference/data/file.cpp:1: <mpi.h> is not for reference/data"])

    def test_the_order_of_includes(self):
        def order(*lines):
            return self.faults({"reference/data/file.cpp": "\n".join(lines) + "\n"})
        own, project, library, std = '#include "tree_attn/reference/data/file.hpp"', '#include "tree_attn/reference/state/state.hpp"', "#include <unistd.h>", "#include <array>"
        self.assertEqual(order(own, "", project, "", library, "", std, "#include <vector>"), [])
        self.assertIn("stands after", order(std, "", project)[0])
        self.assertIn("stands after", order(project, "", own)[0])
        self.assertIn("no empty line", order(project, std)[0])
        self.assertIn("sorted block", order("#include <vector>", std)[0])
        self.assertIn("sorted block", order(std, "", "#include <vector>")[0])

    def test_a_file_in_a_comment(self):
        faults = self.faults({"tests/gpu/a.cpp": "// see state.hpp, state/state.hpp, reference/state/state.hpp and test_*.cpp\n// see elsewhere.hpp\n"
                                                 'int x = f("other.hpp");  // of state/other.hpp\n'})
        self.assertEqual([fault.split(" names ")[1].split(",")[0] for fault in faults], ["elsewhere.hpp", "state/other.hpp"])

    def test_a_source_without_a_page(self):
        header = {"tests/gpu/a.hpp": "/// @file\n"}
        self.assertEqual(self.faults(header | {"tests/gpu/a.cpp": "int x;\n"}), ["tests/gpu/a.cpp:1: no @file and @brief, which tests/gpu/a.hpp has"])
        self.assertEqual(self.faults(header | {"tests/gpu/a.cpp": "/// @file\n"}), [])

    def test_words(self):
        self.assertEqual(self.faults({"gpu/engine/a.hpp": "// after the last key; the thread that reads; `who` is a name\nint x;  // \"behind\" may not stand here\n"}),
                         ["gpu/engine/a.hpp:2: 'behind' in a comment: say which thread or rank, and after or past"])
        self.assertEqual(len(self.faults({"reference/tensor/a.hpp": "/// Whoever waits in vain\n"})), 2)
        self.assertEqual(self.faults({"gpu/engine/a.hpp": 'fail("what nobody has written");\n', "tests/gpu/a.cpp": "// behind\n"}), [])

    def test_matching_by_name(self):
        def by_name(line):
            return len(self.faults({"tests/gpu/a.cpp": line + "\n"}))
        self.assertEqual(by_name('if (algorithm.name == "ring") return;'), 1)
        self.assertEqual(by_name('return "step-a" != name || step == &device::kNaive;'), 2)
        self.assertEqual(by_name('CHECK(find("ring").name == "ring");'), 0)
        self.assertEqual(by_name('if (name == "other") return;'), 0)

    def test_names_of_test_cases(self):
        self.assertIn("semicolon", self.faults({"tests/gpu/a.cpp": 'TEST_CASE("a: b; c") {\n'})[0])
        self.assertIn("too long", self.faults({"tests/gpu/a.cpp": 'TEST_CASE(\n    "a: b") {\n'})[0])
        self.assertEqual(self.faults({"tests/gpu/a.cpp": 'TEST_CASE("a: b, c") { CHECK(";" != x); }\n'}), [])

    def test_a_branch_for_devices_in_the_reference(self):
        text = "#if defined(__CUDA_ARCH__)\n#endif\n"
        self.assertEqual(self.faults({"reference/state/forest.hpp": text}), ["reference/state/forest.hpp:1: code of the reference is the same on hosts and devices"])
        self.assertEqual(self.faults({"gpu/engine/forest.cuh": text}), [])

    def test_a_registry_that_has_moved(self):
        self.assertIn("does not know the registry any more", self.faults({"distributed/decoders/decoder.cpp": ""})[0])

    def test_known_exceptions(self):
        known = {("arrow", "gpu/engine/launch.hpp", "gpu/ladder/ladder.hpp"): "reason"}
        self.assertEqual(self.faults({"gpu/engine/launch.hpp": '#include "tree_attn/gpu/ladder/ladder.hpp"\n'}, known), [])
        self.assertIn("no longer so", self.faults({}, known)[0])


if __name__ == "__main__":
    unittest.main()
