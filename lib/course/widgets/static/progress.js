// What a reader has read and done: ticks in the contents at the side of every page, a button at the
// end of chapters and labs, and the page that lists it all. It stays in this browser.
(() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const KEY = "minidist.progress"; // {off, done: {name: page}}; a page's name is its own
  const STARS = "minidist.puzzles"; // the editor's: {name: {code, stars}}
  const pageOf = (address) => /\/((?:book|notebooks)\/\w+)\.html/.exec(address)?.[1];

  // ---- what is kept ----

  let works = true;
  try {
    localStorage.setItem(KEY, localStorage.getItem(KEY) ?? "{}");
  } catch {
    works = false; // forbidden, or full
  }
  const done = () => ({ ...kept(KEY).done });
  const shown = () => works && !kept(KEY).off;

  function kept(key) {
    try {
      return Object(JSON.parse(localStorage.getItem(key)));
    } catch {
      return {}; // spoiled
    }
  }

  function keep(key, values) {
    try {
      localStorage.setItem(key, JSON.stringify({ ...kept(key), ...values }));
    } catch {
      works = false;
    }
    show();
  }

  function mark(name, page, is) {
    const { [name]: _, ...others } = done();
    keep(KEY, { done: is ? { ...others, [name]: page } : others });
  }

  // ---- every page: the contents at the side, and a button at the end of chapters and labs ----

  const here = pageOf(location.href);
  const links = [...document.querySelectorAll(".bd-docs-nav li > a")].filter((link) =>
    pageOf(link.href)?.startsWith("notebooks/") || /^\s*\d+\./.test(link.textContent));
  const button = html("button", { type: "button" });
  const end = html("p", { class: "minidist-widget at-the-end" }, button);
  button.textContent = here?.startsWith("book/") ? "I have read this" : "I have done the exercises";
  button.onclick = () => mark(here, here, !(here in done()));
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
    button.setAttribute("aria-pressed", here in done());
    if (list) showList();
  }

  // ---- the page that lists it all ----

  const list = document.querySelector(".your-progress");
  const part = (selector) => list.querySelector(selector);
  const boxes = [...document.querySelectorAll(".your-progress fieldset input")];

  function showList() {
    for (const box of boxes) box.checked = box.value in done();
    for (const group of list.querySelectorAll("fieldset")) {
      const [some, all] = [":checked", "input"].map((which) => group.querySelectorAll(which).length);
      group.querySelector(".count").textContent = `${some} of ${all}`;
    }
    const earned = Object.entries(JSON.parse(list.dataset.stars)).map(([name, stars]) =>
      Math.min(kept(STARS)[name]?.stars ?? 0, stars));
    part(".earned").textContent = earned.reduce((sum, stars) => sum + stars);
    part(".why").textContent = "This browser keeps nothing here, so there is nothing to list.";
    part(".why").hidden = works;
    part(".switch").hidden = !works;
    part(".lists").hidden = !shown();
    part("#keep-progress").checked = shown();
  }

  // The report of `make grade`: "DDP, flat: Correct. ..."
  function read(report) {
    const now = done();
    const right = {}; // of each milestone in it
    for (const [, name, verdict] of report.matchAll(/^[ \t]*(.+?): (Correct|Wrong|Not yet)\b/gm)) {
      const box = boxes.find(({ value }) => value === name);
      if (!box) continue;
      right[name] = verdict === "Correct";
      delete now[name];
      if (right[name]) now[name] = box.dataset.page;
    }
    keep(KEY, { done: now });
    const each = Object.values(right);
    const count = `${each.filter(Boolean).length} of ${each.length} right.`;
    part(".said").textContent = each.length ? count : "No milestone is named there.";
  }

  function write() {
    const text = JSON.stringify({ done: done(), puzzles: kept(STARS) }, null, 1);
    const href = URL.createObjectURL(new Blob([text]));
    html("a", { href, download: "progress.json" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  }

  // What was done in either browser; of each puzzle the better result.
  function receive(given) {
    const theirs = boxes.filter((box) => box.value in given.done).map((box) => [box.value, box.dataset.page]);
    const puzzles = Object.keys(JSON.parse(list.dataset.stars)).map((name) => [name, given.puzzles?.[name] ?? {}]);
    const better = puzzles.filter(([name, { code, stars }]) =>
      typeof code === "string" && Number.isInteger(stars) && stars > (kept(STARS)[name]?.stars ?? 0));
    keep(KEY, { done: { ...done(), ...Object.fromEntries(theirs) } });
    keep(STARS, Object.fromEntries(better.map(([name, { code, stars }]) => [name, { code, stars }])));
  }

  if (list) {
    const file = part("[type=file]");
    for (const box of boxes) box.onchange = () => mark(box.value, box.dataset.page, box.checked);
    part("#report").oninput = ({ target }) => target.value && read(target.value);
    part("#keep-progress").onchange = ({ target }) => keep(KEY, { off: !target.checked });
    part(".clear").onclick = () => confirm("Remove all ticks? Stars stay.") && keep(KEY, { done: {} });
    part(".export").onclick = write;
    part(".import").onclick = () => file.click();
    file.onchange = async () => {
      try {
        receive(JSON.parse(await file.files[0].text()));
        part(".said").textContent = "Imported.";
      } catch {
        part(".said").textContent = "That is not a file with progress.";
      }
      file.value = "";
    };
  }
  show();
  addEventListener("storage", show); // another tab
  addEventListener("pageshow", show); // back to a page that the browser kept
})();
