// How the search ranks what it finds: titles that hold the query as it was typed, then chapters
// before labs, and labs before the API.
const typed = (new URLSearchParams(window.location.search).get("q") ?? "").toLowerCase().trim();
const isTyped = (title) => typed !== "" && title.toLowerCase().includes(typed);
var Scorer = {
  score: ([page, title, , , score]) =>
    score +
    (isTyped(title) ? 50 : 0) -
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
