// SPDX-License-Identifier: Apache-2.0
// The first drawing of a figure that readers change, as SVG: the page without a browser. docs/tools/plain_figures.py keeps it in docs/figures/.
// Run: node docs/tools/still.js docs/NAME.js < FACTS, where FACTS declares what the script reads: docs/tools/live.py
const fs = require("fs"), vm = require("vm");

class Element {
  constructor(name) { Object.assign(this, {name, attributes: {}, children: [], style: {}, dataset: {}, clientWidth: 860, textContent: ""}); }
  setAttribute(key, value) { this.attributes[key] = value; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener() {}
  find(name) { return this.name === name ? this : this.children.map(child => child.find(name)).find(Boolean); }
  text() {
    const safe = words => String(words).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
    const attributes = Object.entries(this.attributes).filter(([, value]) => value !== "").map(([key, value]) => ` ${key}="${safe(typeof value === "number" ? +value.toFixed(2) : value)}"`);
    return `<${this.name}${attributes.join("")}>${safe(this.textContent)}${this.children.map(child => child.text()).join("\n")}</${this.name}>`;
  }
}

const page = new Element("div"), create = name => new Element(name);
const document = {getElementById: () => page, createElement: create, createElementNS: (_, name) => create(name), addEventListener() {}};
const window = {addEventListener() {}};
vm.runInNewContext(fs.readFileSync(0, "utf-8") + "\n" + fs.readFileSync(process.argv[2], "utf-8"), {document, window, performance, setTimeout, addEventListener() {}, ResizeObserver: class { observe() {} }});
process.on("exit", () => {
  const drawing = page.find("svg");
  drawing.attributes = {xmlns: "http://www.w3.org/2000/svg", ...drawing.attributes};
  console.log(drawing.text());
});
