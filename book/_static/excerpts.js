// Under each result of the search: where the page says it. Above all: the error message that was
// pasted, whatever else came with it.
(() => {
  const AROUND = 90; // characters before and after
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const words = query.split(/[\s-]+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&"));
  const phrase = new RegExp(words.join("[\\s-]+"), "iu");
  const each = new RegExp(`(${words.join("|")})`, "giu");

  function excerpt(page) {
    const paragraphs = globalThis.searchTexts?.[page] ?? [];
    const different = (text) => new Set(text.match(each)?.map((word) => word.toLowerCase())).size;
    const most = (one, other) => (different(other) > different(one) ? other : one);
    const best = paragraphs.find((text) => phrase.test(text)) ?? paragraphs.reduce(most, "");
    const at = Math.max(0, best.search(phrase.test(best) ? phrase : each));
    const start = at > AROUND ? best.indexOf(" ", at - AROUND) + 1 : 0;
    const end = at + AROUND < best.length ? best.lastIndexOf(" ", at + 2 * AROUND) : best.length;
    return different(best) && `${start ? "… " : ""}${best.slice(start, end)}${end < best.length ? " …" : ""}`;
  }

  function add(result) {
    const link = result.querySelector("a");
    if (!link || result.querySelector(".excerpt")) return;
    const page = link.getAttribute("href").replace(/\.html(#.*)?$/, "");
    const text = excerpt(page);
    if (!text) return;
    const line = document.createElement("p");
    line.className = "excerpt";
    for (const [i, piece] of text.split(each).entries()) {
      const mark = document.createElement("mark");
      mark.textContent = piece;
      line.append(i % 2 ? mark : piece);
    }
    result.append(line);
  }

  // A message is meant if most of its words were typed, or if little else was.
  function meant(message) {
    const wordsOf = (text) => new Set(text.toLowerCase().match(/[a-z][a-z_]{2,}/g));
    const [its, typed] = [wordsOf(message), wordsOf(query)];
    const common = [...its].filter((word) => typed.has(word)).length;
    const enough = common >= 0.6 * its.size || common >= 0.8 * typed.size;
    return common >= 3 && enough ? common / its.size : 0;
  }

  function addMessages() {
    const all = Object.entries(globalThis.searchMessages ?? {});
    const found = all.map(([id, text]) => [meant(text), id, text]).filter(([share]) => share);
    for (const [, id, text] of found.sort().reverse().slice(0, 3).reverse()) {
      const line = document.createElement("p");
      const link = document.createElement("a");
      const code = document.createElement("code");
      line.className = "message";
      link.href = `book/errors.html#${id}`;
      code.textContent = text;
      link.append(code);
      line.append("Explained: ", link);
      results.before(line);
    }
  }

  const results = document.querySelector("#search-results");
  if (!results || !words.length) return;
  addMessages();
  const addAll = () => results.querySelectorAll("li").forEach(add);
  new MutationObserver(addAll).observe(results, { childList: true, subtree: true });
  addAll();
})();
