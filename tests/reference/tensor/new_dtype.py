#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An incomplete type must not compile. Adds F8_E8M0 to a copy of dtype.hpp, part by part.

new_dtype.py SOURCE_DIR BUILD_DIR: compiles with the commands of compile_commands.json
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

TRAITS = """
template <>
struct DTypeTraits<NewType> {
  static constexpr DType kDType = DType::F8_E8M0;
  static constexpr KernelCores kCores = facts_of(kDType).cores;
  using Wide = float;
  TREE_ATTN_HOST_DEVICE static float widen(NewType x) { return float(x.bits); }
  TREE_ATTN_HOST_DEVICE static NewType narrow(float) { return {}; }
};
"""

ROW = 'DTypeFacts{DType::F8_E8M0, "F8_E8M0", 1, 0x1p-4, 448, KernelCores::None}'


def parts(header):
    """The parts of a type: what stands in the header, and what it is replaced by."""
    enumerators = re.search(r"enum class DType \{.*\};", header)[0]
    last_case = re.findall(r" *case DType::\w+: return call\(.*\);\n", header)[-1]
    return {
        "an enumerator": (enumerators, enumerators.replace(" };", ", F8_E8M0 };")),
        "a row": ("KernelCores::TensorCores}};", f"KernelCores::TensorCores}},\n{ROW}}};"),
        "a case": (last_case, last_case + "    case DType::F8_E8M0: return call(NewType{});\n"),
        "an element type": ("/// bfloat16: the upper", "struct NewType {\n  std::uint8_t bits;\n};\n\n/// bfloat16: the upper"),
        "traits": ("/// An element type whose traits", TRAITS + "\n/// An element type whose traits"),
    }


# Sources that read the traits. They compile unchanged once the type is complete.
READERS = ["reference/tensor/convert.cpp", "reference/data/safetensors.cpp", "reference/data/synthetic.cpp", "plain/launch.cu.cpp"]
# A step on scalar cores accepts every kernel type. A step on tensor cores needs a product for it.
SCALAR_STEP, TENSOR_STEP = "plain/03_vectors.cu.cpp", "plain/06_tensor.cu.cpp"


def command_for(build, source):
    """The command for a source of the build, or for the unit in which it is compiled with others, without input and output; and the source."""
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = entry["file"]
        if "/Unity/" in file:
            file = next(iter(re.findall(rf'"(\S*{re.escape(source)})"', Path(file).read_text())), "")
        if file.endswith(source):
            words = shlex.split(entry["command"])
            words = words[: words.index("-c")]
            output = words.index("-o")
            return words[:output] + words[output + 2 :], file
    return None, None


def main():
    root, build = Path(sys.argv[1]), Path(sys.argv[2])
    header = (root / "reference/tensor/dtype.hpp").read_text()
    new_parts = parts(header)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "reference/tensor/dtype.hpp"
        copy.parent.mkdir(parents=True)

        def compiles(text, like, source=None):
            """Tests whether a source compiles with the options of `like` and this text as dtype.hpp, whose copy is found first."""
            copy.write_text(text)
            words, file = command_for(build, like)
            if words is None:
                sys.exit(f"{like}: not in this build")
            first = next(i for i, word in enumerate(words) if word.startswith("-"))
            run = subprocess.run([*words[:first], f"-I{scratch}", *words[first:], "-fsyntax-only", "-c", str(source or file)],
                                 capture_output=True, text=True)
            return run.returncode == 0, run.stderr

        checks = Path(scratch) / "checks.cpp"
        checks.write_text('#include "reference/tensor/dtype.hpp"\n')

        def expect(text, wanted, what, words=""):
            ok, errors = compiles(text, READERS[0], checks)
            if ok != wanted or (words and words not in errors):
                sys.exit(f"{what}: {'compiles' if ok else 'does not compile'}, without '{words}'\n{errors}")

        def replaced(text, old, new):
            if text.count(old) != 1:
                sys.exit(f"dtype.hpp: '{old}' occurs {text.count(old)} times")
            return text.replace(old, new)

        # The enumerator alone, then with all parts but one.
        expect(header, True, "the header as it is")
        text = replaced(header, *new_parts["an enumerator"])
        expect(text, False, "an enumerator alone", "F8_E8M0")
        complete = header
        for part in new_parts.values():
            complete = replaced(complete, *part)
        for missing in new_parts:
            text = header
            for name, part in new_parts.items():
                if name != missing:
                    text = replaced(text, *part)
            expect(text, False, f"all but {missing}")

        # Traits without one of their members.
        for line in TRAITS.splitlines():
            for member in ("kDType", "kCores ", "Wide", "widen(", "narrow("):
                if member in line:
                    partial = TRAITS.replace(line + "\n", "")
                    expect(replaced(complete, TRAITS, partial), False, f"traits without {member}")
        expect(replaced(complete, "kDType = DType::F8_E8M0", "kDType = DType::F16"), False, "the enumerator of another type")

        # These need no more than a complete type.
        expect(complete, True, "a complete type")
        scalar, tensor = (replaced(complete, ROW, ROW.replace("None", name)) for name in ("Scalar", "TensorCores"))
        for text, wanted, reader in [*((complete, True, reader) for reader in READERS),
                                     (scalar, True, SCALAR_STEP), (scalar, True, TENSOR_STEP), (tensor, False, TENSOR_STEP)]:
            ok, errors = compiles(text, reader)
            if ok != wanted:
                sys.exit(f"{reader} with a complete type {'compiles' if ok else 'does not compile'}:\n{errors}")


if __name__ == "__main__":
    main()
