// Results while one types into the search. The first key loads what finds them: the book's index and
// texts, which pages do not carry for readers who do not search.
(() => {
  "use strict";
  const MOST = 6; // results
  const PAUSE = 120; // milliseconds without a key
  const root = document.documentElement.dataset.content_root;
  const FILES = ["_static/language_data.js", "_static/search_texts.js", "searchindex.js", "_static/finder.js"];
  const add = (file) =>
    new Promise((loaded) => {
      const script = document.createElement("script");
      script.src = root + file;
      script.async = false; // in this order
      script.addEventListener("load", loaded);
      document.head.append(script);
    });

  // The page of results has them already, with Sphinx's `Search`; elsewhere this one keeps the index.
  let loading = null;
  function load() {
    if (globalThis.minidistFinder) return Promise.resolve();
    globalThis.Search = { setIndex: (index) => { globalThis.Search._index = index; } };
    return Promise.all(FILES.map(add));
  }

  // Of a query: [what it is, where it stands].
  function found(query) {
    const { complete, explain, find, termsOf } = globalThis.minidistFinder;
    const { searchTexts: texts, searchMessages: messages } = globalThis;
    if (!termsOf(query).length) return [];
    const explained = explain(query, messages).map(([id]) => [`Explained: ${messages[id].lines[0]}`, `book/errors.html#${id}`]);
    const pages = find(complete(query, texts), Search._index, texts).entries;
    const plain = (title) => title.replace(/<[^>]*>/g, "");
    return [...explained, ...pages.map(({ page, title, anchor }) => [plain(title), `${page}.html${anchor}`])].slice(0, MOST);
  }

  function show(list, query) {
    const items = found(query).map(([text, to]) => {
      const [item, link] = [document.createElement("li"), document.createElement("a")];
      link.textContent = text;
      link.href = root + to;
      item.append(link);
      return item;
    });
    list.replaceChildren(...items);
    list.hidden = items.length === 0;
  }

  for (const form of document.querySelectorAll("form.bd-search")) {
    const list = document.createElement("ul");
    list.className = "typed";
    list.hidden = true;
    list.setAttribute("aria-label", "Results so far");
    form.after(list);
    let later;
    form.addEventListener("input", ({ target }) => {
      loading ??= load();
      clearTimeout(later);
      later = setTimeout(() => loading.then(() => show(list, target.value.trim())), PAUSE);
    });
  }
})();
