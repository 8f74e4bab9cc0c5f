// What a query means, and where the book says it: whole words by their stems, words that mean the
// same, titles before text. `excerpts.js` shows what is found; nothing here touches the page.
globalThis.minidistFinder = (() => {
  "use strict";
  const STOP = new Set(
    ("a about an and any are as at be been being by can could did do does doing for from get gets had has have how i " +
      "if in into is it its me my of off on onto or our out should so some than that the their them then there these " +
      "they this those to up us use used using was we were what when where which who whom why will with work works " +
      "working would you your").split(" "),
  );
  const SAME = {
    a2a: ["all-to-all"], allgather: ["all-gather"], allreduce: ["all-reduce"], alltoall: ["all-to-all"],
    cp: ["context parallel"], ddp: ["DistributedDataParallel"], distributeddataparallel: ["DDP"],
    ep: ["expert parallel"], fsdp2: ["fully_shard", "FSDP"], fullyshardeddataparallel: ["FSDP"],
    grad: ["gradient"], gradient: ["grad"], gradients: ["grad"], grads: ["gradients"], hsdp: ["hybrid sharding"], lr: ["learning rate"],
    moe: ["mixture of experts", "experts"], oom: ["out of memory"], pp: ["pipeline"],
    reducescatter: ["reduce-scatter"], tp: ["tensor parallel"], zero1: ["ZeRO-1"], zero2: ["ZeRO-2"],
    zero3: ["ZeRO-3"],
  };
  const stemmer = new globalThis.Stemmer();
  const stems = new Map();

  function stem(word) {
    if (!stems.has(word)) stems.set(word, stemmer.stemWord(word));
    return stems.get(word);
  }
  // A name's parts follow it: clip_grad_norm_, clip, grad, norm.
  const partsOf = (word) => (word.includes("_") ? [word, ...word.split("_").filter(Boolean)] : [word]);
  const stemsOf = (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).map(stem);
  const stemsIn = (text) => (text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? []).flatMap(partsOf).map(stem);

  // What a query asks for, each with what means the same: lists of stems. "all-reduce" is one.
  function termsOf(query) {
    const all = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}_]+(?:-[\p{L}\p{N}_]+)*/gu) ?? [])];
    const some = all.filter((word) => !STOP.has(word));
    const sameAs = (word) => [...(word.includes("-") ? [word.replaceAll("-", "")] : []), ...(SAME[word] ?? [])];
    return (some.length ? some : all).map((word) => [word, ...sameAs(word)].map(stemsOf));
  }

  function times(phrase, words) {
    let count = 0;
    for (let at = words.indexOf(phrase[0]); at >= 0; at = words.indexOf(phrase[0], at + 1)) {
      if (phrase.every((each, i) => words[at + i] === each)) count += 1;
    }
    return count;
  }
  const said = (term, words) => term.reduce((sum, phrase) => sum + times(phrase, words), 0);

  // ---- pages ----

  let pages = null; // as stems; `book` is {titles, headings: {page: [[id, text]]}, texts}
  function read(book) {
    pages ??= Object.keys(book.texts).map((page) => {
      const [, number, title] = /^(\d*)\.?\s*(.*)$/.exec((book.titles[page] ?? "").replace(/<[^>]*>/g, "").trim());
      const headings = (book.headings[page] ?? []).map(([id, text]) => ({ id, text, words: stemsOf(text) }));
      const paragraphs = book.texts[page].map(stemsIn);
      return { page, number: Number(number || 99), title: stemsOf(title), headings, paragraphs };
    });
    return pages;
  }

  function countsOf(term, { title, headings, paragraphs }) {
    const sum = (lists) => lists.reduce((all, words) => all + said(term, words), 0);
    const inTitle = said(term, title);
    return { title: inTitle > 0, all: sum(paragraphs) + sum(headings.map(({ words }) => words)) + inTitle };
  }

  // The share of words that are meant: 1 in "Prefetch", less in "What a prefetch saves".
  const filled = (words, terms) =>
    words.length && terms.every((term) => said(term, words)) ? (terms.flatMap(([own]) => own).length / words.length) : 0;

  // Chapters come before labs and the API, and earlier ones before later ones.
  const behind = ({ page, number }) =>
    (page.startsWith("notebooks/") ? 8 : page.startsWith("book/api") ? 16 : 0) + number / 30;
  const ENOUGH = 2.3; // log2 of about five times, after which a word is simply a page's own

  function scored(each, counts, terms, rarity, whole) {
    const sum = (all) => all.reduce((a, b) => a + b, 0);
    const few = (count) => Math.min(ENOUGH, Math.log2(1 + count));
    const share = sum(counts.map(({ all }, t) => (all ? rarity[t] : 0))) / sum(rarity);
    const titled = counts.filter(({ title }) => title).length / terms.length;
    const fill = each.headings.map(({ words }) => filled(words, terms));
    const best = Math.max(0, ...fill);
    const opens = (words) => terms.some(([own]) => own.every((stem, i) => stem === words[i]));
    const together = each.paragraphs.filter((words) => terms.every((term) => said(term, words)));
    const phrases = terms.length > 1 ? sum(each.paragraphs.map((words) => times(whole, words))) : 0;
    const untitled = 15 * best + (together.some(opens) ? 5 : 0);
    const worth = sum(counts.map(({ all }, t) => rarity[t] * few(all))) + 4 * few(together.length) +
      6 * Math.log2(1 + phrases) + 25 * titled + (opens(each.title) ? 6 : 0) + untitled * (1 - titled);
    const heading = best ? each.headings[fill.indexOf(best)] : null;
    return { page: each.page, heading, score: share ** 2 * worth - behind(each), share };
  }

  const MOST = 10; // pages with some of the words only

  // Pages with a score, best first: those that have all that is meant; if there is none, those that
  // have some of it, the rarest words above all.
  function rank(query, book) {
    const terms = termsOf(query);
    const counts = read(book).map((each) => terms.map((term) => countsOf(term, each)));
    const rarity = terms.map((_, t) => Math.log2(1 + pages.length / (1 + counts.filter((each) => each[t].all).length)));
    const found = pages.map((each, p) => scored(each, counts[p], terms, rarity, stemsOf(query))).filter(({ share }) => share);
    const full = found.filter(({ share }) => share > 0.999);
    const shown = (full.length ? full : found).sort((a, b) => b.score - a.score);
    return { full: full.length > 0, pages: full.length ? shown : shown.slice(0, MOST) };
  }

  // The same by Sphinx's index and the pages' texts: with the title and the place to go to.
  function find(query, { docnames, titles, alltitles }, texts) {
    const headings = {};
    for (const [text, places] of Object.entries(alltitles)) {
      for (const [file, id] of places) if (id !== null) (headings[docnames[file]] ??= []).push([id, text]);
    }
    const titleOf = Object.fromEntries(docnames.map((page, file) => [page, titles[file]]));
    const found = rank(query, { titles: titleOf, headings, texts });
    const entries = found.pages.map(({ page, heading, score }) => {
      const place = heading && heading.text !== titleOf[page] ? heading : null;
      const title = place ? `${titleOf[page]} > ${place.text}` : titleOf[page];
      return { page, title, anchor: place ? `#${place.id}` : "", score };
    });
    return { full: found.full, entries };
  }

  // A query whose last word is still being typed, with the book's most frequent word that begins so.
  let vocabulary = null; // word → how often
  function complete(query, texts) {
    const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];
    if (!vocabulary) {
      vocabulary = new Map();
      for (const word of Object.values(texts).flat().flatMap(words)) vocabulary.set(word, (vocabulary.get(word) ?? 0) + 1);
    }
    const last = /[\p{L}\p{N}_]*$/u.exec(query.toLowerCase())[0];
    if (!last || vocabulary.has(last) || STOP.has(last)) return query;
    const longer = [...vocabulary].filter(([word]) => word.startsWith(last));
    const [word] = longer.reduce((most, each) => (each[1] > most[1] ? each : most), [last, 0]);
    return query.slice(0, query.length - last.length) + word;
  }

  // ---- messages ----

  // A message, whatever came with it: a pasted line has most of its words, or is a part of it.
  const wordsOf = (text) => new Set(text.toLowerCase().match(/[a-z_'][a-z0-9_']{2,}/g));
  const named = (text) => text.match(/\b(?:\w*Error|[A-Z]{6,})\b|\b_\w+/g) ?? [];

  // `messages` is {anchor: {lines, says}}. The best entries for a query: [anchor, share], best first.
  function explain(query, messages) {
    const typed = wordsOf(query);
    const entries = Object.entries(messages);
    const lines = entries.flatMap(([, { lines }]) => lines.map(wordsOf));
    const rarity = (word) => Math.log2(1 + lines.length / (1 + lines.filter((each) => each.has(word)).length));
    const weight = (words) => [...words].reduce((sum, word) => sum + rarity(word), 0);
    const flat = (text) => text.toLowerCase().replace(/[^a-z0-9_]+/g, " ").trim();
    function share(line) {
      const its = wordsOf(line);
      const common = [...its].filter((word) => typed.has(word));
      if (!common.length) return 0;
      const name = named(query).some((word) => named(line).includes(word));
      const [of_line, of_query] = [weight(common) / weight(its), weight(common) / weight(typed)];
      if (its.size > 1 && ` ${flat(query)} `.includes(` ${flat(line)} `)) return 1 + its.size / 100;
      if (common.length >= 3 && of_line >= 0.6) return of_line;
      if (name && typed.size === 1) return 0.9;
      const part = common.length >= 2 && ` ${flat(line)} `.includes(` ${flat(query)} `);
      return part || (common.length >= 3 && of_query >= 0.8) ? 0.6 + 0.3 * of_line : 0;
    }
    const shares = entries.map(([id, { lines }]) => [id, Math.max(...lines.map(share))]);
    const best = Math.max(...shares.map(([, each]) => each));
    return shares.filter(([, each]) => each && each > 0.75 * best).sort((a, b) => b[1] - a[1]).slice(0, 3);
  }

  // Whether a query is pasted from a terminal rather than typed as a question.
  const pasted = (query) => /error|exception|warn|fail|\[rank|errno|timed? ?out|cannot|can't|\w::\w|\.(cc|cpp|py):\d/i.test(query);

  return { STOP, termsOf, stemsOf, times, find, complete, explain, pasted };
})();
