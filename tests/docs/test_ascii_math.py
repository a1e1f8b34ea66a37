#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/tools/ascii_math.py: formulas of doc comments become TeX, and what it does not know stays as it is."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))
import ascii_math
import filter as pages

PAIRS = {
    "F(zeta) = log sum_a exp(q.k_a + zeta.v_a),": r"F(\zeta) = \log \sum_{a} \exp(q \cdot k_{a} + \zeta \cdot v_{a}),",
    "dF/dzeta = sum_a softmax(s)_a v_a": r"\frac{\partial F}{\partial \zeta} = \sum_{a} \operatorname{softmax}(s)_{a} v_{a}",
    "d^2 F / dzeta dzeta^T  =  <v v^T> - <v> <v>^T": r"\frac{\partial^2 F}{\partial \zeta \partial \zeta^{T}} = \langle v v^{T}\rangle - \langle v\rangle \langle v\rangle ^{T}",
    "w_a = 2^(s_a - e),   e = max(e_l, e_r)": r"w_{a} = 2^{s_{a} - e},\qquad e = \max(e_{l}, e_{r})",
    "p' = ceil(N / ceil(N/p)) <= min(N, p)": r"p' = \lceil N / \lceil N/p \rceil \rceil \le \min(N, p)",
    "F*(z) = sup_zeta ( z.zeta - F(zeta) )": r"F^*(z) = \sup_{\zeta} ( z \cdot \zeta - F(\zeta) )",
    "F_tot = sum_{a <= i} 1/n! x_{i-1}": r"F_{\mathrm{tot}} = \sum_{a \le i} \tfrac{1}{n!} x_{i-1}",
    "0 <= j < 2^40.": r"0 \le j < 2^{40}.",
}


class Formulas(unittest.TestCase):
    def test_known_formulas(self):
        for text, tex in PAIRS.items():
            self.assertEqual(ascii_math.translated(text), tex)

    def test_what_is_not_known_stays(self):
        for text in ("kName           as in safetensors", "x = embed_tokens[token]", "state[u] <- merge(state[u])  # x", "exp(q", "W = s     the argument d_h"):
            self.assertIsNone(ascii_math.formulas([text]), text)
        # All lines of a formula, or none.
        self.assertIsNone(ascii_math.formulas(["e = m", "the maximum"]))

    def test_most_formulas_of_the_headers_are_known(self):
        known, unknown = 0, 0
        for path in (ROOT / "reference").rglob("*.hpp"):
            lines = path.read_text(encoding="utf-8").splitlines()
            for start, end in ascii_math.blocks(lines):
                tex = ascii_math.formulas(line.strip()[3:] for line in lines[start:end])
                known, unknown = known + (tex is not None), unknown + (tex is None)
                for line in tex or []:
                    self.assertEqual(line.count("{"), line.count("}"), line)
        self.assertGreater(known, 2 * unknown)


if __name__ == "__main__":
    unittest.main()
