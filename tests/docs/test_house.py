#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/house.py: each rule finds what breaks it, and nothing else."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools"))
import house

# Enough of a house for every rule: seven algorithms, seven kernels.
GROUND = {
    "reference/state/state.hpp": "#pragma once\n\n#include <cmath>\n",
    "reference/energy/energy.hpp": "#pragma once\n\n#include <Eigen/Core>\n\n#include <cmath>\n",
    "distributed/exchange/decoder.cpp": "".join(f'    {{"{name}", "brief"}},\n' for name in "abcdef") + '    {"ring", "brief"},\n',
    "gpu/ladder/ladder.cu": "".join(f'{{.name = "step-{name}"}},\n' for name in "abcdefg"),
}


HEAD = "/// - Grid: one.\n/// - Block: a warp.\n/// - Reads: x.\n/// - Writes: y.\n"


class House(unittest.TestCase):
    def faults(self, files, known=None):
        """Returns what the check says of the ground with these files."""
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
        upwards = '#include "gpu/ladder/ladder.hpp"\n'
        for name, text, said in (
                ("gpu/engine/launch.hpp", upwards, "gpu/engine may not include gpu/ladder/ladder.hpp"),
                ("gpu/loose.hpp", "\n", "lies in no sub-room"),
                ("reference/decode/decode.hpp", '#include "reference/energy/energy.hpp"\n', "brings Eigen, which nothing here may need"),
                ("reference/data/file.cpp", "#include <mpi.h>\n", "<mpi.h> is not for reference/data"),
                ("reference/data/file.cpp", '#include <array>\n\n#include "reference/state/state.hpp"\n', "stands after"),
                ("reference/data/file.cpp", "#include <vector>\n#include <array>\n", "sorted block"),
                ("tests/gpu/a.cpp", "// see elsewhere.hpp\n", " names elsewhere.hpp"),
                ("gpu/engine/a.hpp", "// behind it\n", "'behind' in a comment"),
                ("gpu/backend/a.hpp", "int a;  ///< of a tile\n/// What a tile is.\n", "gpu/backend/a.hpp:2: a doc comment begins with 'What'"),
                ("tests/gpu/a.cpp", "/// What a test says.\n", "tests/gpu/a.cpp:1: a doc comment begins with 'What'"),
                ("gpu/backend/a.hpp", "/// @file\n/// @brief The same again.\n", "a doc comment begins with 'The same'"),
                ("gpu/backend/a.cu", HEAD.replace("/// - Reads: x.\n", "") + "__global__ void a() {}\n", "gpu/backend/a.cu:4: the comment of this kernel has no '- Reads:'"),
                ("gpu/ladder/ladder.cu", GROUND["gpu/ladder/ladder.cu"] + HEAD + "template <class T>\n__global__ void a() {}\n", "has no '@tparam'"),
                ("tests/gpu/a.hpp", "  /// Whether it is.\n", "tests/gpu/a.hpp:1: a doc comment begins with 'Whether'"),
                ("docs/tools/a.py", 'def a():\n    """What it is."""\n', "docs/tools/a.py:2: a doc comment begins with 'What'"),
                ("distributed/interface/a.h", "/** How it is. */\n", "distributed/interface/a.h:1: a doc comment begins with 'How'"),
                ("tests/gpu/a.cpp", 'if (algorithm.name == "ring") return;\n', "ring"),
                ("tests/gpu/a.cpp", 'TEST_CASE("a: b; c") {\n', "semicolon"),
                ("tests/gpu/a.cpp", 'TEST_CASE(\n    "a: b") {\n', "too long"),
                ("reference/state/forest.hpp", "#if defined(__CUDA_ARCH__)\n#endif\n", "the same on hosts and devices"),
                ("reference/data/file.cpp", '#include "state.hpp"\n', 'state.hpp is not included as "<room>/'),
                ("reference/data/file.cpp", "#include <reference/state/state.hpp>\n", "is not included as"),
                ("distributed/exchange/a.cu", '#include "gpu/backend/cache.hpp"\n', "distributed/exchange*.cu may not include gpu/backend/cache.hpp"),
                ("reference/data/file.cpp", "#include <array>\n\n#include <vector>\n", "vector does not follow array in a sorted block"),
                ("reference/data/file.cpp", "#include <array>\n#include <array>\n", "array does not follow array in a sorted block"),
                ("reference/data/file.cpp", "#include <Eigen/Core>\n#include <array>\n", "no empty line between Eigen/Core and array"),
                ("tests/gpu/a.cpp", "// see reference/state/elsewhere.hpp\n", " names reference/state/elsewhere.hpp"),
                ("tests/tool.py", "# see elsewhere.hpp\n", "tests/tool.py:1: the comment names elsewhere.hpp"),
                ("tests/gpu/a.cpp", 'if ("ring" == algorithm.name) return;\n', "ring is matched by its name"),
                ("docs/a.md", "# What it is\n\nA page.\n\n* One.\n* What decides a bit is\n  in 26 files.\n", "docs/a.md:6: 'What decides a bit is in"),
                ("README.md", "A claim. That of a tree is another.\n", "README.md:1: 'That of a tree is another.' leaves the reader"),
                ("docs/a.md", "A key is read, since a mask is no range.\n", "'is no range.' is 'is not a'"),
                ("docs/a.md", "In the tables\nthey stand with rows.\n", "'stand with rows.'"),
                ("docs/a.md", "At 1M keys 0.89 of the rate are left.\n", "'9 of the rate are left.'"),
                ("docs/a.md", "Before the joins came in.\n", "is 'arrives'"),
                ("docs/a.md", "Ranks divide the rows; so do they over MPI.\n", "is 'and ... too'"),
                ("docs/a.md", "A rank waits in vain.\n", "name it"),
                ("distributed/exchange/decoder.cpp", "", "does not know the registry any more")):
            with self.subTest(text):
                self.assertIn(said, "\n".join(self.faults({name: text})))

    def test_rules_of_several_files(self):
        chain = {f"reference/decode/{name}.hpp": f'#include "reference/{below}.hpp"\n' for name, below in (("a", "decode/b"), ("b", "decode/c"), ("c", "energy/energy"))}
        self.assertIn("reference/decode/a.hpp:1: reference/decode/b.hpp brings Eigen, which nothing here may need", self.faults(chain))
        pair = {"gpu/engine/a.hpp": "/// @file\n", "gpu/engine/a.cu": "\n"}
        self.assertEqual(self.faults(pair), ["gpu/engine/a.cu:1: no @file and @brief, which gpu/engine/a.hpp has"])
        self.assertEqual(self.faults(pair | {"gpu/engine/a.cu": "/// @file\n"}), [])

    def test_faults_are_printed_and_are_the_status(self):
        for faults in ([], ["a.hpp:1: a fault"]):
            with mock.patch.multiple(house, tracked=lambda: [], check=lambda files: None, faults=list(faults)), mock.patch.object(sys, "argv", ["house.py"]), \
                    contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual((house.main(), out.getvalue()), (len(faults), "".join(f"{line}\n" for line in faults)))
            self.assertIn("1 faults" if faults else "The house stands", err.getvalue())

    def test_what_breaks_none(self):
        for name, text in (("gpu/backend/cache.hpp", '#include "gpu/ladder/ladder.hpp"\n'), ("tests/gpu/a.cpp", '// see state/state.hpp\nCHECK(find("ring").name == "ring");\n'),
                           ("gpu/engine/a.hpp", 'fail("a text that no test knows");\n'), ("gpu/engine/forest.cuh", "#if defined(__CUDA_ARCH__)\n#endif\n"),
                           ("distributed/exchange/a.cpp", '#include "gpu/backend/cache.hpp"\n'), ("tests/gpu/a.cpp", 'say("// elsewhere.hpp");\n'),
                           ("gpu/backend/a.hpp", "/// Tiles, as long as rows are.\n/// Of rows, all.\nint a;  ///< Of a tile.\n/// Office.\n"),
                           ("gpu/backend/a.cu", HEAD + "__global__ void a() {}\n\n/// @tparam T any\n" + HEAD + "template <class T>\n__global__ void b() {}\n"),
                           ("docs/a.md", "# It stands\n\n```\nWhat it is.\n```\nWhat is it? There is no key, `so are they`. No larger: a is no larger. It stands for b.\n\n$$\n3 are left\n$$\n"),
                           ("docs/b/a.md", "What it is.\n"), ("docs/CHANGELOG.md.txt", "It came in.\n"),
                           ("tests/gpu/a.cpp", "/// A tile.\n/// What follows on a line.\n"), ("reference/data/file.cpp", '#include "reference/data/file.hpp"\n\n#include "reference/state/state.hpp"\n\n#include <Eigen/Core>\n\n#include <array>\n#include <vector>\n')):
            self.assertEqual(self.faults({name: text}), [], text)

    def test_known_exceptions(self):
        known = {("arrow", "gpu/engine/launch.hpp", "gpu/ladder/ladder.hpp"): "reason"}
        self.assertEqual(self.faults({"gpu/engine/launch.hpp": '#include "gpu/ladder/ladder.hpp"\n'}, known), [])
        self.assertIn("no longer so", self.faults({}, known)[0])


if __name__ == "__main__":
    unittest.main()
