// SPDX-License-Identifier: Apache-2.0
// A tree whose cuts can be moved: the forests of the ranks, the states that travel, and the bits of the output, by the tree and by Alg. 3.
//
// Where the site has the program of docs/tools/layouts.cpp, WebAssembly, that decodes 2,048 keys on every rank (tests/docs/test_layouts.py).
// Where it has not, a script merges 64 keys, which come as states in F32 from docs/tools/cut_tree.cpp. Its arithmetic is that of
// reference/state/state.hpp and reference/state/forest.hpp: Math.fround rounds every sum once, as F32 does. tests/docs/test_cut_tree.py
// compares all bits with the C++.

const TreeCuts = (() => {
  const kShift = 0, kSum = 1, kValues = 2;

  /// 2^x for an integer x <= 0; 0 below the normal range of F32.
  const pow2 = x => (x >= -126 ? 2 ** x : 0);

  /// merge(left, right), as in state.hpp. States are Float32Arrays: e, D, n.
  function merge(left, right) {
    const rightIsHigh = right[kShift] > left[kShift], high = rightIsHigh ? right : left, low = rightIsHigh ? left : right;
    const factor = low[kShift] === high[kShift] ? 1 : pow2(low[kShift] - high[kShift]), merged = new Float32Array(left.length);
    merged[kShift] = high[kShift];
    for (let i = kSum; i < left.length; ++i) merged[i] = Math.fround(high[i] + Math.fround(factor * low[i]));
    return merged;
  }

  /// Appends a subtree {level, index, state} to a forest, then merges the last two while they are siblings: Forest::push().
  function push(forest, next) {
    forest.push(next);
    for (let n = forest.length; n >= 2; n = forest.length) {
      const left = forest[n - 2], right = forest[n - 1];
      if (left.level !== right.level || left.index % 2 !== 0 || left.index + 1 !== right.index) return;
      forest.splice(n - 2, 2, {level: left.level + 1, index: left.index / 2, state: merge(left.state, right.state)});
    }
  }

  /// Merges a forest from right to left: Forest::fold().
  const fold = forest => forest.map(each => each.state).reduceRight((right, left) => merge(left, right));

  const finish = state => state.slice(kValues).map(n => n / state[kSum]);
  const keyStates = facts => Array.from({length: facts.keys.length / facts.state_size}, (_, a) =>
      Float32Array.from(facts.keys.slice(a * facts.state_size, (a + 1) * facts.state_size)));

  /// The forest of every rank: keys pushed one by one.
  function forests(facts, cuts) {
    const keys = keyStates(facts);
    return cuts.slice(1).map((end, r) => {
      const forest = [];
      for (let a = cuts[r]; a < end; ++a) push(forest, {level: 0, index: a, state: keys[a]});
      return forest;
    });
  }

  /// z by the tree: the forests of the ranks, joined from left to right.
  function byTree(facts, cuts) {
    const joined = [];
    for (const forest of forests(facts, cuts)) for (const subtree of forest) push(joined, subtree);
    return finish(fold(joined));
  }

  /// z by Alg. 3, lines 2 to 6, in F32.
  function byPaper(facts, cuts) {
    const states = forests(facts, cuts).map(fold), o = states.map(finish), round = Math.fround;
    const lse = states.map(state => round(Math.LN2 * (state[kShift] + Math.log2(state[kSum]))));
    const m = Math.max(...lse), n = new Float32Array(o[0].length);
    let D = 0;
    lse.forEach((lse_r, r) => {
      const w = round(Math.exp(round(lse_r - m)));
      for (let j = 0; j < n.length; ++j) n[j] = round(n[j] + round(o[r][j] * w));
      D = round(D + w);
    });
    return n.map(n_j => n_j / D);
  }

  const hex = word => word.toString(16).padStart(8, "0");
  const bits = z => Array.from(new Uint32Array(Float32Array.from(z).buffer), hex);

  /// The maximal subtrees of every range: reference/state/subtree.hpp.
  function cover(cuts) {
    return cuts.slice(1).map((end, r) => {
      const forest = [];
      for (let at = cuts[r]; at < end; at += 2 ** forest.at(-1).level) {
        let level = 0;
        while (at % 2 ** (level + 1) === 0 && at + 2 ** (level + 1) <= end) ++level;
        forest.push({level, index: at / 2 ** level});
      }
      return forest;
    });
  }

  /// The program, from its bytes: decode() returns the digests of a layout, of leaves.
  async function program(bytes) {
    const system = Object.fromEntries(["fd_close", "fd_seek", "fd_write"].map(name => [name, () => 0]));
    const {exports} = (await WebAssembly.instantiate(bytes, {wasi_snapshot_preview1: system})).instance;
    exports._initialize();
    const keys = exports.n_keys(), leaf = exports.leaf_keys();
    return {keys, leaf, leaves: Math.ceil(keys / leaf), stateBytes: exports.state_bytes(), setValue: exports.set_value, decode(cuts) {
      new Int32Array(exports.memory.buffer, exports.cuts(), cuts.length).set(cuts);
      exports.decode(cuts.length - 1);
      const words = Array.from(new Uint32Array(exports.memory.buffer, exports.digests(), 4), hex);
      return {tree: [words[1] + words[0]], paper: [words[3] + words[2]]};
    }};
  }

  return {forests, byTree, byPaper, bits, cover, program};
})();

if (typeof module !== "undefined") module.exports = TreeCuts;

if (typeof document !== "undefined" && typeof cutTheTreeFacts !== "undefined") {
  const place = document.getElementById("cut_the_tree"), facts = cutTheTreeFacts, begun = performance.now(), classes = ["a", "b", "c"];
  const scripted = {
    n: facts.keys.length / facts.state_size, keys: facts.keys.length / facts.state_size, stateBytes: facts.state_size * 4, first: [0, 16, 27, 45],
    what: "z", says: "A script runs here, with the arithmetic of state.hpp and forest.hpp.",
    forests: cuts => TreeCuts.forests(facts, cuts),
    outputs: cuts => ({tree: TreeCuts.bits(TreeCuts.byTree(facts, cuts)), paper: TreeCuts.bits(TreeCuts.byPaper(facts, cuts))}),
  };
  const compiled = ({keys, leaf, leaves, stateBytes, setValue, decode}) => ({
    n: leaves, keys, stateBytes, setValue, first: [0, 8, 13, 22], what: "digest",
    says: `The library's plain.hpp runs here, compiled to WebAssembly: each rank decodes its leaves of ${leaf} keys at every move.`,
    forests: TreeCuts.cover, outputs: decode,
  });

  const svg = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const node = (name, text, kind) => Object.assign(document.createElement(name), {textContent: text, className: kind || ""});

  function show(model) {
    const n = model.n, depth = Math.log2(n), left = 12, width = 888, dx = (width - 2 * left) / n, dy = 30;
    const seen = {layouts: new Set(), tree: new Set(), paper: new Set()};
    let whole = model.outputs([0, n]), cuts = [...model.first, n];
    const x = (level, index) => left + dx * (index + 0.5) * 2 ** level, y = level => 16 + dy * (depth - level);

    const figure = node("figure", "", "drawn"), drawing = svg("svg", {viewBox: `0 0 ${width} ${y(0) + 62}`, width, role: "img"});
    const words = node("div", "", "cut"), buttons = node("div", "", "cut_buttons");
    figure.append(drawing);
    place.replaceChildren(figure, buttons, words);

    function draw() {
      drawing.replaceChildren();
      const forests = model.forests(cuts);
      const owner = (level, index) => cuts.findIndex((end, r) => r > 0 && cuts[r - 1] <= index << level && (index + 1) << level <= end) - 1;
      const held = new Set(forests.flat().map(each => `${each.level} ${each.index}`));
      for (let level = 1; level <= depth; ++level) {
        for (let index = 0; index < n >> level; ++index) {
          for (const child of [2 * index, 2 * index + 1]) {
            drawing.append(svg("line", {class: "line", x1: x(level, index), y1: y(level), x2: x(level - 1, child), y2: y(level - 1)}));
          }
        }
      }
      for (let level = 0; level <= depth; ++level) {
        for (let index = 0; index < n >> level; ++index) {
          const rank = owner(level, index), r = level === 0 ? 4.5 : 6.5, root = held.has(`${level} ${index}`);
          drawing.append(svg("circle", {class: "node", style: "stroke:none", cx: x(level, index), cy: y(level), r}));
          drawing.append(svg("circle", {class: rank < 0 ? "node" : classes[rank % 3], cx: x(level, index), cy: y(level), r, "stroke-width": root ? 3.5 : 1.2}));
        }
      }
      cuts.slice(1).forEach((end, r) => {
        const begin = cuts[r];
        drawing.append(svg("rect", {class: classes[r % 3], x: left + dx * begin + 2, y: y(0) + 14, width: dx * (end - begin) - 4, height: 22, rx: 4}));
        if (dx * (end - begin) > 45) drawing.append(svg("text", {x: left + dx * (begin + end) / 2, y: y(0) + 29.5}, dx * (end - begin) > 85 ? `rank ${r}` : r));
      });
      cuts.slice(1, -1).forEach((cut, i) => {
        const handle = svg("g", {class: "cut_handle", tabindex: 0, role: "slider", "aria-label": `cut ${i + 1}`, "aria-valuenow": cut, "aria-valuemin": 1, "aria-valuemax": n - 1});
        handle.append(svg("line", {class: "slow", x1: left + dx * cut, x2: left + dx * cut, y1: y(2), y2: y(0) + 44}));
        handle.append(svg("circle", {class: "slow_head", cx: left + dx * cut, cy: y(0) + 48, r: 8}));
        handle.dataset.cut = i + 1;
        drawing.append(handle);
      });
      const {tree, paper} = model.outputs(cuts);
      seen.layouts.add(cuts.join()), seen.tree.add(tree.join()), seen.paper.add(paper.join());
      const travel = forests.slice(1).reduce((sum, forest) => sum + forest.length, 0), p = forests.length;
      const line = (label, found, reference) => {
        const row = node("div", "", "cut_bits");
        row.append(node("span", label));
        found.forEach((word, j) => row.append(node("code", word, word === reference[j] ? "same" : "other")));
        return row;
      };
      words.replaceChildren(
          node("div", `${p} ${p === 1 ? "rank" : "ranks"}; subtrees: ${forests.map(forest => forest.length).join(", ")}. To join them on rank 0, ` +
                      `${travel} ${travel === 1 ? "state travels" : "states travel"}, ${travel * model.stateBytes} bytes; the ${model.keys} keys stay where they are.`),
          line(`${model.what} by the tree`, tree, whole.tree), line(`${model.what} by Alg. 3`, paper, whole.paper),
          node("div", `${seen.layouts.size} ${seen.layouts.size === 1 ? "layout" : "layouts"} so far: ${seen.tree.size} output of the tree, ${seen.paper.size} of Alg. 3.`),
          node("div", model.says));
    }

    /// Moves a cut, between its neighbours; draws if it has moved.
    function move(i, to) {
      const cut = Math.min(cuts[i + 1] - 1, Math.max(cuts[i - 1] + 1, to));
      if (cut === cuts[i]) return;
      cuts[i] = cut;
      draw();
    }
    let moving = 0;
    const at = event => Math.round(((event.clientX - drawing.getBoundingClientRect().left) * width / drawing.getBoundingClientRect().width - left) / dx);
    drawing.style.touchAction = "pan-y";
    drawing.addEventListener("pointerdown", event => {
      const handle = event.target.closest(".cut_handle");
      moving = handle ? Number(handle.dataset.cut) : 0;
      if (moving) drawing.setPointerCapture(event.pointerId), event.preventDefault();
    });
    drawing.addEventListener("pointermove", event => { if (moving) move(moving, at(event)); });
    drawing.addEventListener("pointerup", () => { moving = 0; });
    drawing.addEventListener("keydown", event => {
      const handle = event.target.closest(".cut_handle"), step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (!handle || !step) return;
      const i = Number(handle.dataset.cut);
      event.preventDefault();
      move(i, cuts[i] + step);
      drawing.querySelector(`[data-cut="${i}"]`).focus();
    });

    const randomCuts = p => {
      const chosen = new Set([0, n]);
      while (chosen.size < p + 1) chosen.add(1 + Math.floor(Math.random() * (n - 1)));
      return [...chosen].sort((a, b) => a - b);
    };
    const button = (text, change) => {
      const element = node("button", text);
      element.type = "button";
      element.addEventListener("click", () => { cuts = change(cuts.length - 1); draw(); });
      buttons.append(element);
    };
    button("one rank less", p => (p > 1 ? randomCuts(p - 1) : cuts));
    button("one rank more", p => (p < 13 ? randomCuts(p + 1) : cuts));
    button("cut at random", randomCuts);
    button("cut evenly", p => Array.from({length: p + 1}, (_, r) => Math.round(r * n / p)));
    if (model.setValue) {
      const field = (label, value, attributes) => {
        const element = Object.assign(document.createElement("input"), {type: "number", value, ...attributes}), around = node("label", `${label} `);
        around.append(element);
        element.addEventListener("change", change);
        buttons.append(around);
        return element;
      };
      // Another value is another output, which again has one digest for all layouts.
      const change = () => {
        model.setValue(Math.min(model.keys - 1, Math.max(0, Math.round(Number(key.value)))), Number(value.value));
        whole = model.outputs([0, n]);
        for (const each of Object.values(seen)) each.clear();
        draw();
      };
      const key = field("value of key", 700, {min: 0, max: model.keys - 1}), value = field("is", "", {step: "any", placeholder: "drawn"});
    }
    draw();
    place.dataset.first = Math.round(performance.now() - begun);
  }

  if (facts.program && typeof WebAssembly !== "undefined")
    TreeCuts.program(Uint8Array.from(atob(facts.program), letter => letter.charCodeAt(0))).then(program => show(compiled(program)), () => show(scripted));
  else
    show(scripted);
}
