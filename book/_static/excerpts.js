// Under each result of the search: where the page says it.
(() => {
  const AROUND = 90; // characters before and after
  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  const words = query.split(/[\s-]+/).filter(Boolean).map((word) => word.replace(/[^\p{L}\p{N}_]/gu, "\\$&"));
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

  const results = document.querySelector("#search-results");
  if (!results || !words.length) return;
  const addAll = () => results.querySelectorAll("li").forEach(add);
  new MutationObserver(addAll).observe(results, { childList: true, subtree: true });
  addAll();
})();
