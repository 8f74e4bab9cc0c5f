// How the search ranks what it finds: titles that hold the query as it was typed, then pages that
// often say it, word beside word; chapters before labs, and these before the API.
const typed = (new URLSearchParams(window.location.search).get("q") ?? "").toLowerCase().trim();
const isTyped = (title) => typed !== "" && title.toLowerCase().includes(typed);
const words = typed.split(/[\s-]+/).map((word) => word.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&"));
const phrase = new RegExp(words.join("[\\s-]+"), "giu");
const counts = new Map();
function timesSaid(page) {
  const paragraphs = globalThis.searchTexts?.[page] ?? [];
  const count = () => paragraphs.reduce((sum, each) => sum + (each.match(phrase)?.length ?? 0), 0);
  if (!counts.has(page)) counts.set(page, typed ? count() : 0);
  return counts.get(page);
}
var Scorer = {
  score: ([page, title, , , score]) =>
    score +
    (isTyped(title) ? 50 : 0) +
    8 * Math.log2(1 + timesSaid(page)) -
    (page.startsWith("notebooks/") ? 10 : 0) -
    (page.startsWith("book/api") ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
