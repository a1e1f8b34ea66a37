// SPDX-License-Identifier: Apache-2.0
// What the pages of the book do: search in the text, beside Doxygen's search for names, and folds that are open on wide screens.
// The sections that are searched are in search/text.js, which docs/tools/finish.py writes. tests/docs/test_finish.py tests findInText().

/// The sections in which every word of the query begins a word, best first: [{page, title, section, before, hit, after}].
/// sections: [[link, title of the page, title of the section, text]].
function findInText(sections, query, limit = 12) {
  const words = query.toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(word => word !== "");
  if (words.length === 0 || words.join("").length < 2) return [];
  const starts = words.map(word => new RegExp("(?<![\\p{L}\\p{N}])" + word, "giu"));
  const phrase = query.trim().toLowerCase();
  const found = [];
  for (const [link, title, section, text] of sections) {
    // A hit in the title of a page counts for its first section only, or every section of the page would be found.
    const heading = link.includes("#") ? section : title;
    let score = 0;
    for (const start of starts) {
      const inHeading = (heading.match(start) || []).length, inText = (text.match(start) || []).length;
      if (inHeading + inText === 0) { score = -1; break; }
      score += 10 * Math.min(inHeading, 1) + Math.min(inText, 5);
    }
    if (score < 0) continue;
    if (words.length > 1 && (heading + "\n" + text).toLowerCase().includes(phrase)) score += 12;
    let at = words.length > 1 ? text.toLowerCase().indexOf(phrase) : -1, length = phrase.length;
    for (let i = 0; at < 0 && i < words.length; ++i) {
      at = text.search(starts[i]);
      length = words[i].length;
    }
    if (at < 0) { at = 0; length = 0; }
    const begin = Math.max(0, text.lastIndexOf(" ", Math.max(0, at - 50)) + 1);
    found.push({score, link, title, section, before: (begin > 0 ? "... " : "") + text.slice(begin, at), hit: text.slice(at, at + length),
                after: text.slice(at + length, at + length + 90)});
  }
  return found.sort((a, b) => b.score - a.score).slice(0, limit);
}

/// A list of what was found.
function showFound(list, query) {
  const node = (name, text, kind) => Object.assign(document.createElement(name), {textContent: text, className: kind || ""});
  const found = findInText(bookText, query);
  list.replaceChildren(node("div", found.length ? "In the text" : "Not in the text", "kind"));
  for (const each of found) {
    const entry = node("a", "", "found");
    entry.href = each.link;
    entry.append(node("b", each.section || each.title), node("small", each.section ? " " + each.title : ""), node("br", ""));
    const context = node("span", "");
    context.append(each.before, node("mark", each.hit), each.after);
    entry.append(context);
    list.append(entry);
  }
}

if (typeof document !== "undefined") {
  document.addEventListener("DOMContentLoaded", () => {
    // Doxygen's search calls Search() whenever the query changes; the text is loaded at the first call.
    if (typeof searchBox !== "undefined") {
      const list = Object.assign(document.createElement("div"), {id: "TextResults"});
      const names = Object.assign(document.createElement("div"), {id: "NameResults", textContent: "Names"});
      document.getElementById("MSearchResultsWindow").prepend(list, names);
      const searchNames = searchBox.Search.bind(searchBox);
      let loaded = false;
      searchBox.keyTimeoutLength = 200;
      searchBox.Search = () => {
        searchNames();
        const show = () => showFound(list, searchBox.DOMSearchField().value);
        if (loaded) return show();
        const script = document.createElement("script");
        script.src = searchBox.resultsPath.replace(/\/?$/, "/") + "text.js";
        script.onload = () => { loaded = true; show(); };
        document.head.append(script);
      };
    }
    // On wide screens the tests stand beside the code.
    const wide = window.matchMedia("screen and (min-width: 1800px)");
    const unfold = () => document.querySelectorAll("div.beside details.test, div.beside details.source").forEach(fold => { fold.open = wide.matches; });
    wide.addEventListener("change", unfold);
    if (wide.matches) unfold();
  });
}

if (typeof module !== "undefined") module.exports = {findInText};
