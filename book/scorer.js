// How the search ranks what it finds: chapters before labs, labs before the API.
var Scorer = {
  score: ([page, , , , score]) =>
    score - (page.startsWith("notebooks/") ? 10 : 0) - (page.startsWith("book/api") ? 20 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 30,
  partialTitle: 15,
  term: 5,
  partialTerm: 2,
};
