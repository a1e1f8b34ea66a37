// SPDX-License-Identifier: Apache-2.0
// On a narrow screen a displayed formula begins at the left, and its number too, so that nothing but the end of a long one has to be scrolled.
// No box that says what is loading: it covers the navigation.
MathJax.Hub.Config({messageStyle: "none"});
if (window.innerWidth < 600) MathJax.Hub.Config({displayAlign: "left", TeX: {TagSide: "left"}});
// A formula in a line of text that is wider than the text gets a line of its own, which scrolls (docs/book.css).
const giveWideFormulasALine = () => {
  for (const formula of document.querySelectorAll("span.MathJax_SVG")) {
    const around = formula.closest("p, li, dd"), drawing = formula.querySelector("svg");
    if (around && drawing) formula.classList.toggle("wide", drawing.getBoundingClientRect().width > around.clientWidth);
  }
};
MathJax.Hub.Register.StartupHook("End", giveWideFormulasALine);
window.addEventListener("resize", giveWideFormulasALine);
