// The page of search results: Sphinx shows what `finder.js` finds. Under each result stands where
// the page says it; above all, what the error message means that was pasted.
(() => {
  "use strict";
  const AROUND = 90; // characters before and after
  const { STOP, termsOf, stemsOf, times, find, explain, pasted } = globalThis.minidistFinder;
  const texts = globalThis.searchTexts ?? {};
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const terms = termsOf(query);
  const phrase = stemsOf(query);
  const make = (name, text, ...children) => {
    const node = document.createElement(name);
    if (text) node.className = text;
    node.append(...children);
    return node;
  };

  // ---- which pages ----

  // [docname, title, anchor, description, score, filename], the best last, as Sphinx wants it.
  function results() {
    const { docnames, filenames } = Search._index;
    const { full, entries } = find(query, Search._index, texts);
    if (!explained) sayWhatIsMissing(full, entries.length);
    const found = entries.map(({ page, title, anchor, score }) =>
      [page, title, anchor, null, score, filenames[docnames.indexOf(page)]]);
    return [...found, ...objects()].sort((a, b) => a[4] - b[4]);
  }

  // Names of the API that were typed in full.
  function objects() {
    const words = query.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];
    const own = words.filter((word) => words.length === 1 || word.includes("_"));
    const sure = /_|[a-z][A-Z]/.test(query);
    const found = own.flatMap((word) => Search.performObjectSearch(word, new Set([word])));
    return found
      .filter(([, name]) => own.includes(name.split(".").pop().toLowerCase()))
      .map(([page, name, anchor, says, , file]) => [page, name, anchor, says, sure ? 90 : 15, file]);
  }

  // ---- where they say it ----

  // The pieces of a text, every second one a word that is meant.
  function pieces(text) {
    const words = text.split(/([\p{L}\p{N}_]+)/u);
    const known = new Set(terms.flat(2).filter((word) => !STOP.has(word)));
    const marked = [""];
    words.forEach((word, i) => {
      if (i % 2 && known.has(stemsOf(word)[0])) marked.push(word, "");
      else marked[marked.length - 1] += word;
    });
    return marked;
  }

  function excerpt(page) {
    const all = (texts[page] ?? []).map((text) => [text, stemsOf(text)]);
    const worth = (words) =>
      terms.filter((term) => term.some((each) => times(each, words))).length + (times(phrase, words) ? 100 : 0);
    const [best] = all.reduce((most, each) => (worth(each[1]) > worth(most[1]) ? each : most), ["", []]);
    const at = pieces(best)[0].length;
    const start = at > AROUND ? best.indexOf(" ", at - AROUND) + 1 : 0;
    const end = at + 2 * AROUND < best.length ? best.lastIndexOf(" ", at + 2 * AROUND) : best.length;
    return best && `${start ? "… " : ""}${best.slice(start, end)}${end < best.length ? " …" : ""}`;
  }

  function add(result) {
    const link = result.querySelector("a");
    if (!link || result.querySelector(".excerpt")) return;
    const text = excerpt(link.getAttribute("href").replace(/\.html(#.*)?$/, ""));
    if (!text) return;
    result.append(make("p", "excerpt", ...pieces(text).map((piece, i) => (i % 2 ? make("mark", "", piece) : piece))));
  }

  // ---- messages ----

  function addMessages() {
    const messages = globalThis.searchMessages ?? {};
    const found = explain(query, messages);
    for (const [id] of found) {
      const link = make("a", "", make("code", "", messages[id].lines[0]));
      link.href = `book/errors.html#${id}`;
      shown.before(make("p", "message", "Explained: ", link), make("p", "excerpt", messages[id].says));
    }
    return found.length > 0;
  }

  // What is not explained may be in other words on the page of messages.
  function sayWhatIsMissing(full, some) {
    const link = make("a", "", "error messages");
    link.href = "book/errors.html";
    const message = pasted(query);
    const rest = some ? " These pages have some of the words, the rarest first:" : "";
    if (message) shown.before(make("p", "message", "This message is not among the ", link, " that the book explains."));
    if (full) return;
    const says = make("p", "message", `No page has ${some ? "all" : "any"} of these words.`);
    if (!message) says.append(" Was it an error message? See ", link, ".");
    says.append(rest);
    shown.before(says);
  }

  const shown = document.querySelector("#search-results");
  if (!shown || !terms.length) return;
  Search._performSearch = () => {
    document.getElementById("search-progress")?.replaceChildren();
    return results();
  };
  const explained = addMessages();
  const addAll = () => shown.querySelectorAll("li").forEach(add);
  new MutationObserver(addAll).observe(shown, { childList: true, subtree: true });
})();
