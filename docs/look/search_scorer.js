// How the site's search ranks pages: those that answer a question stand before those that only use its words.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename]) =>
    score + (docname.startsWith("howto/") || docname === "cluster" ? 12 : docname.startsWith("reference/api") ? -4 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
