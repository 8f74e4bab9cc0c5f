// What a reader has read and done: ticks in the contents at the side of every page, and a button at
// the end of chapters and labs. `your_progress.js` is the page that lists it all.
(() => {
  "use strict";
  const { html, button } = globalThis.minidistPlayer;
  const { kept, keep, lost, whenKept, load } = globalThis.minidistKept;
  const pageOf = (address) => /\/((?:book|notebooks)\/\w+)\.html/.exec(address)?.[1];

  const done = () => ({ ...kept("progress").done }); // a page's name is its own
  const shown = () => !lost() && !kept("progress").off;

  function mark(name, page, is) {
    const { [name]: _, ...others } = done();
    keep("progress", { done: is ? { ...others, [name]: page } : others });
  }

  const here = pageOf(location.href);
  const links = [...document.querySelectorAll(".bd-docs-nav li > a")].filter((link) =>
    pageOf(link.href)?.startsWith("notebooks/") || /^\s*\d+\./.test(link.textContent));
  const words = here?.startsWith("book/") ? "I have read this" : "I have done the exercises";
  const ticked = button(words, () => mark(here, here, !(here in done())));
  const end = html("p", { class: "minidist-widget at-the-end" }, ticked);
  if (links.some((link) => pageOf(link.href) === here)) {
    document.querySelector("article.bd-article")?.append(end);
  }

  function ticksOf(page) {
    const tick = (text, label) => html("span", { class: "tick", role: "img", "aria-label": label }, text);
    const own = page.startsWith("book/") ? "read" : "exercises done";
    const written = Object.keys(done()).filter((name) => done()[name] === page && name !== page);
    return [
      ...(page in done() ? [tick("✓", own)] : []),
      ...(written.length ? [tick("◆".repeat(written.length), `written: ${written.join("; ")}`)] : []),
    ];
  }

  function show() {
    for (const link of links) {
      for (const tick of link.querySelectorAll(".tick")) tick.remove();
      if (shown()) link.append(...ticksOf(pageOf(link.href)));
    }
    end.hidden = !shown();
    ticked.setAttribute("aria-pressed", here in done());
  }

  whenKept("progress", show);
  globalThis.minidistProgress = { done, mark, shown };
  if (document.querySelector(".your-progress")) load("your_progress.js");
})();
