// The page that lists what a reader has read and done, reads the report of `make grade`, and takes
// all that this browser keeps to another.
(() => {
  "use strict";
  const { html } = globalThis.minidistPlayer;
  const { kept, keep, lost, whenKept } = globalThis.minidistKept;
  const { earnedOf } = globalThis.minidistPuzzles;
  const { done, mark, shown } = globalThis.minidistProgress;
  const list = document.querySelector(".your-progress");
  const part = (selector) => list.querySelector(selector);
  const boxes = [...document.querySelectorAll(".your-progress fieldset input")];

  function show() {
    for (const box of boxes) box.checked = box.value in done();
    for (const group of list.querySelectorAll("fieldset")) {
      const [some, all] = [":checked", "input"].map((which) => group.querySelectorAll(which).length);
      group.querySelector(".count").textContent = `${some} of ${all}`;
    }
    const earned = Object.entries(JSON.parse(list.dataset.stars)).map((each) => earnedOf(...each));
    part(".earned").textContent = earned.reduce((sum, stars) => sum + stars);
    part(".why").textContent = lost();
    part(".why").hidden = !lost();
    part(".switch").hidden = lost() !== "";
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
    keep("progress", { done: now });
    const each = Object.values(right);
    const count = `${each.filter(Boolean).length} of ${each.length} right.`;
    part(".said").textContent = each.length ? count : "No milestone is named there.";
  }

  function write() {
    const all = { done: done(), puzzles: kept("puzzles"), guesses: kept("guesses") };
    const href = URL.createObjectURL(new Blob([JSON.stringify(all, null, 1)]));
    html("a", { href, download: "progress.json" }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  }

  // What was done in either browser; of each puzzle the better result, and the code of this one.
  // Older files have no guesses and no best answers, or nothing but puzzles.
  function receive(given) {
    const { done: theirs = {}, puzzles = given, guesses = {} } = given;
    const ticks = boxes.filter((box) => box.value in theirs).map((box) => [box.value, box.dataset.page]);
    const written = Object.entries(puzzles).flatMap(([name, { code = "", stars = 0, best = code }]) => {
      const texts = [code, best].every((each) => typeof each === "string");
      if (!texts || !Number.isInteger(stars) || !(code || stars > 0)) return [];
      const mine = { stars: 0, ...kept("puzzles")[name] };
      const better = stars > mine.stars ? best : mine.best;
      const both = { code: mine.code || code || undefined, stars: Math.max(stars, mine.stars) };
      return [[name, better ? { ...both, best: better } : both]];
    });
    const guessed = Object.entries(guesses).filter(([, { says }]) => typeof says === "string");
    if (!(ticks.length + written.length + guessed.length)) throw new Error("nothing of ours");
    keep("progress", { done: { ...done(), ...Object.fromEntries(ticks) } });
    keep("puzzles", Object.fromEntries(written));
    keep("guesses", { ...Object.fromEntries(guessed), ...kept("guesses") });
  }

  const file = part("[type=file]");
  for (const box of boxes) box.onchange = () => mark(box.value, box.dataset.page, box.checked);
  part("#report").oninput = ({ target }) => target.value && read(target.value);
  part("#keep-progress").onchange = ({ target }) => keep("progress", { off: !target.checked });
  part(".clear").onclick = () => {
    if (confirm("Remove all ticks? Stars and guesses stay.")) keep("progress", { done: {} });
  };
  part(".export").onclick = write;
  part(".import").onclick = () => file.click();
  file.onchange = async () => {
    try {
      receive(JSON.parse(await file.files[0].text()));
      part(".said").textContent = "Imported.";
    } catch {
      part(".said").textContent = "There is no progress in that file.";
    }
    file.value = "";
  };
  whenKept("progress", show);
  whenKept("puzzles", show);
})();
